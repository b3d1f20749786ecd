// Numbers as text: the same rules as specviz/format.py, tested against the same table (tests/unit/number_cases.json).

const PREFIXES = ["p", "n", "µ", "m", "", "k", "M", "G", "T", "P", "E"];

/** What is shown for a value that is missing or not finite. */
export const MISSING = "n/a";

const absent = (x) => x === null || x === undefined || !Number.isFinite(x);

/** The power of ten of the first significant digit of x, which is not 0. */
export function exponent(x) {
  return Number(x.toExponential().split("e")[1]);
}

/** x with a fixed number of decimals; exact ties go to the even digit, as in Python. */
export function fixed(x, places) {
  const rounded = x.toFixed(places);
  const exact = Math.abs(x).toFixed(Math.min(100, places + 60));
  const cut = exact.indexOf(".") + 1 + places;
  if (!/^50*$/.test(exact.slice(cut))) return rounded;
  const down = exact.slice(0, places ? cut : cut - 1);
  return Number(down.at(-1)) % 2 ? rounded : `${x < 0 ? "-" : ""}${down}`;
}

/** x rounded to significant digits, as a number. */
export function significant(x, digits) {
  const places = digits - 1 - exponent(x);
  if (places >= 0) return Number(places > 40 ? x.toPrecision(digits) : fixed(x, places));
  return Number(`${fixed(x / 10 ** -places, 0)}e${-places}`);
}

/** A plain number with significant digits; "<0.001" rather than 0.000. */
export function number(x, digits = 3) {
  if (absent(x)) return MISSING;
  if (x === 0) return "0";
  if (Number.isInteger(x) && Math.abs(x) < 1e6) return String(x);
  if (Math.abs(x) < 0.001) return x > 0 ? "<0.001" : ">-0.001";
  const rounded = significant(x, digits);
  if (Math.abs(x) >= 1e6) {
    const [mantissa, power] = rounded.toExponential(digits - 1).split("e+");
    return `${mantissa}e+${power.padStart(2, "0")}`;
  }
  return rounded.toFixed(Math.max(0, digits - 1 - exponent(rounded)));
}

/** A value with an SI prefix: si(2.5e10, "B/s") is "25.0 GB/s". */
export function si(x, unit = "", digits = 3) {
  if (absent(x)) return MISSING;
  if (x === 0) return `0 ${unit}`.trimEnd();
  const rounded = significant(x, digits);  // first, so that 999.9 becomes 1.00 k and never 1000
  const power = Math.max(-4, Math.min(6, Math.floor(exponent(rounded) / 3)));
  const scaled = rounded / 1000 ** power;
  const places = Math.max(0, digits - 1 - Math.max(0, exponent(scaled)));
  return `${fixed(scaled, places)} ${PREFIXES[power + 4]}${unit}`.trimEnd();
}

/** A fraction as a percentage; small ones as "<0.1 %". */
export function percent(fraction) {
  if (absent(fraction)) return MISSING;
  const value = 100 * fraction;
  if (value > 0 && value < 0.1) return "<0.1 %";
  const decimal = (Math.abs(value) < 10 && value !== 0) || (value >= 99.5 && value < 99.95);
  return `${fixed(value, decimal ? 1 : 0)} %`;
}

/** A probability with three decimals; neither 0 nor 1 unless it is. */
export function probability(x) {
  if (absent(x)) return MISSING;
  if (x === 0 || x === 1) return String(x);
  if (x < 0.001) return "<0.001";
  return x > 0.999 && x < 1 ? ">0.999" : fixed(x, 3);
}

/** A duration: "12.3 ms", "4.56 s", "2 min 05 s". */
export function seconds(x) {
  if (absent(x)) return MISSING;
  if (x < 60) return si(x, "s");
  return `${Math.floor(x / 60)} min ${String(Math.floor(x % 60)).padStart(2, "0")} s`;
}

/** A number after its relation: "= 0.41", "< 0.001", "> 0.999". */
export function equals(x, form = number) {
  const text = form(x);
  return /^[<>]/.test(text) ? `${text[0]} ${text.slice(1)}` : `= ${text}`;
}
