// The browser's number formatter meets every case of the table that Python's meets.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { equals, number, percent, probability, seconds, si } from "../../assets/lib/numbers.js";

const numbers = { number, si, percent, probability, seconds, equals: (x) => equals(x) };

const cases = JSON.parse(readFileSync(new URL("../unit/number_cases.json", import.meta.url), "utf8"));

for (const [name, list] of Object.entries(cases)) {
  test(`${name} writes every number as the shared table says`, () => {
    for (const row of list) {
      const expected = row.at(-1);
      assert.equal(numbers[name](...row.slice(0, -1)), expected, JSON.stringify(row));
    }
  });
}

test("what is not a finite number is never a figure", () => {
  for (const name of ["number", "si", "percent", "probability", "seconds"]) {
    for (const x of [NaN, Infinity, -Infinity, undefined]) assert.equal(numbers[name](x), "n/a");
  }
});
