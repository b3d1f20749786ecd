// Handles: values from 0 to 1 that are dragged or moved by keys.

/** Lets a pointer drag a handle and the arrow keys move it; place(event) and now() are values from 0 to 1. */
export function makeHandle(hand, group, place, now, moveTo) {
  group.onpointerdown = (event) => {
    if (event.button) return;
    event.preventDefault();
    group.focus({ focusVisible: false });
    group.setPointerCapture(event.pointerId);
    const shift = place(event) - now();
    group.onpointermove = (moved) => moveTo(place(moved) - shift);
    group.onpointerup = group.onpointercancel = () => {
      group.onpointermove = group.onpointerup = group.onpointercancel = null;
      hand.reportHand();
    };
  };
  group.onkeydown = (event) => {
    const step = event.shiftKey ? 0.001 : 0.01;
    const steps = { ArrowRight: step, ArrowUp: step, ArrowLeft: -step, ArrowDown: -step, PageUp: 0.1, PageDown: -0.1 };
    if (event.key in steps) moveTo(Math.round((now() + steps[event.key]) * 1000) / 1000);
    else if (event.key === "Home") moveTo(0);
    else if (event.key === "End") moveTo(1);
    else return;
    event.preventDefault();
    hand.reportHand();
  };
}

/** Where a pointer event lies on a bar that starts at x: 0 at its start, 1 at its end. */
export function along(event, svg, x, span) {
  return (event.clientX - svg.getBoundingClientRect().left - x) / span;
}
