// The comparison's form: a choice is applied at once, and what is as usual stays out of the address.

const USUAL = { x: "step", scale: "linear", smoothing: "0", tolerance: "0.01", kind: "gradient", v: "" };

const form = document.querySelector("form[data-compare]");

form?.addEventListener("change", (event) => {
  if (event.target.matches("select, input[type=checkbox]")) form.requestSubmit();
});

form?.addEventListener("formdata", (event) => {
  const kept = [...event.formData.entries()].filter(([name, value]) => USUAL[name] !== value);
  for (const name of [...event.formData.keys()]) event.formData.delete(name);
  for (const [name, value] of kept) event.formData.append(name, value);
});
