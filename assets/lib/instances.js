// One object per mounted component: Streamlit calls a component's function again on every change of its data.

/**
 * Updates the object that belongs to a mounted component, making it on the first call.
 * @param {WeakMap} known the component's objects by their parent element
 * @param {Function} Component a class with update(data), close() and the property report
 * @param {object} call what Streamlit passes to the component's function
 * @returns {Function} the clean-up that Streamlit calls at unmount
 */
export function mount(known, Component, { data, parentElement, setStateValue }) {
  let instance = known.get(parentElement);
  if (!instance) known.set(parentElement, (instance = new Component(parentElement)));
  instance.report = setStateValue;
  instance.update(data);
  return () => {
    instance.close();
    known.delete(parentElement);
  };
}
