/* What is chosen now. Parts of the page listen to the names they show. */

export function createState(values) {
  const listeners = [];
  return {
    ...values,
    /** Change some values; listeners of a changed one run once. */
    set(changes) {
      const changed = Object.keys(changes).filter((key) => this[key] !== changes[key]);
      Object.assign(this, changes);
      for (const { keys, run } of listeners) if (keys.some((key) => changed.includes(key))) run(changed);
    },
    on(keys, run) {
      listeners.push({ keys, run });
    },
  };
}
