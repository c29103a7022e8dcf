// The fork's part of the page that is there whichever tab is open.
window.gh200 = (() => {
  const keys = GH200_KEYS;
  const seen = {};
  let replaces = "";
  const upstreamFetch = window.fetch.bind(window);

  const addressOf = (input) => new URL(input instanceof Request ? input.url : String(input), location.href);

  // The answer the page was filled from, kept as it came: a save says what it was made of.
  const remember = async (response) => {
    try {
      const text = await response.clone().text();
      const name = JSON.parse(text).name;
      if (name) seen[name] = text;
    } catch {
      // Not a config; upstream says what it thinks of it.
    }
  };

  // A key that a form does not have stays as it is in the file.
  const dropUnchanged = (form, config) => {
    for (const [written, value] of Object.entries(config)) {
      const key = written.replace(/^-+/, "");
      const given = form.get("--" + key);
      if (!keys.includes(key) || given === null || given.length < 200000) continue;
      try {
        if (JSON.stringify(JSON.parse(given)) === JSON.stringify(value)) form.delete("--" + key);
      } catch {
        // Broken: the server says where.
      }
    }
  };

  const addToSave = (form) => {
    const store = window.Alpine?.store("trainer");
    const text = seen[store?.activeEnvironment];
    if (!text) return;
    form.delete("gh200_seen");
    // Upstream's server takes no part of a form above a megabyte.
    for (const part of text.match(/[^]{1,200000}/gu)) form.append("gh200_seen", part);
    if (replaces) form.set("gh200_replaces", replaces);
    else dropUnchanged(form, JSON.parse(text).config || {});
    // Taken out in the dialog that shows the whole config: said, because a key that is only missing is kept.
    const shown = store.activeEnvironmentConfig;
    if (form.has("__replace_active_config__") || !shown) return;
    for (const written of Object.keys(JSON.parse(text).config || {})) {
      const key = written.replace(/^-+/, "");
      const given = ["", "--"].some((dashes) => form.has(dashes + key) || dashes + key in shown);
      if (keys.includes(key) && !given) form.set("--" + key, "");
    }
  };

  // Upstream's own message is gone after three seconds. Ours stays until the next save; the server has made it safe to show.
  const tellRefusal = async (response) => {
    document.querySelector("[data-gh200-refused]")?.remove();
    const place = document.getElementById("validation-results");
    if (response.ok || !place) return;
    const detail = await response.clone().json().then((answer) => answer.detail, () => "");
    if (!String(detail).startsWith("Nothing was saved")) return;
    const told = document.createElement("div");
    told.className = "alert alert-danger";
    told.setAttribute("role", "alert");
    told.dataset.gh200Refused = "";
    told.innerHTML = detail;
    place.append(told);
  };

  window.fetch = async (input, options = {}) => {
    const address = addressOf(input);
    const method = (options.method || "GET").toUpperCase();
    const save = method === "POST" && address.pathname === "/api/training/config" && options.body instanceof FormData;
    if (save) addToSave(options.body);
    const response = await upstreamFetch(input, options);
    if (save) {
      replaces = response.headers.get("X-GH200-On-Disk") || "";
      await tellRefusal(response);
    }
    const config = /^\/api\/configs\/[^/]+$/.test(address.pathname) && address.searchParams.has("t");
    if (config && method === "GET" && response.ok) await remember(response);
    return response;
  };

  // Our tab: the block is the truth, a control shows one key of it and writes it back.
  const tab = () => document.querySelector("[data-gh200-tab]");
  const textOf = (name) => tab()?.querySelector(`[data-gh200-text="${name}"]`);

  const blockOf = (name) => {
    const text = textOf(name)?.value.trim() || "{}";
    const value = JSON.parse(text);
    if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("a block of keys is wanted: { ... }");
    return value;
  };

  const tell = (name, message) => {
    const place = tab()?.querySelector(`[data-gh200-error="${name}"]`);
    if (place) place.textContent = message;
    textOf(name)?.classList.toggle("is-invalid", Boolean(message));
  };

  const shownIn = (control, value) => {
    if (value === undefined || value === null) return "";
    if (control.dataset.gh200Kind === "json") return JSON.stringify(value);
    return String(value);
  };

  const readIn = (control) => {
    const text = control.value.trim();
    const kind = control.dataset.gh200Kind;
    if (text === "") return undefined;
    if (kind === "switch") return text === "true";
    if (kind === "number") return Number(text);
    return kind === "json" ? JSON.parse(text) : text;
  };

  // From the block to its controls. A value no control can show stays in the block, and is named there.
  const showBlock = (name) => {
    let value = {};
    try {
      const text = textOf(name)?.value.trim();
      if (["cache_config", "gh200_optimizations"].includes(name)) value = blockOf(name);
      else if (text) JSON.parse(text);
      tell(name, "");
    } catch (error) {
      tell(name, error.message);
      return;
    }
    for (const control of tab().querySelectorAll(`[data-gh200-block="${name}"]`)) {
      const shown = shownIn(control, value[control.dataset.gh200Key]);
      control.value = shown;
      control.classList.toggle("is-invalid", control.value !== shown);
    }
  };

  const writeControl = (control) => {
    const { gh200Block: name, gh200Key: key } = control.dataset;
    try {
      const block = blockOf(name);
      const value = readIn(control);
      if (value === undefined) delete block[key];
      else block[key] = value;
      const text = textOf(name);
      text.value = Object.keys(block).length ? JSON.stringify(block, null, 2) : "";
      // Upstream listens to what people type.
      text.dispatchEvent(new Event("input", { bubbles: true }));
      text.dispatchEvent(new Event("change", { bubbles: true }));
    } catch (error) {
      control.classList.add("is-invalid");
      tell(name, error.message);
    }
  };

  const showAll = () => tab()?.querySelectorAll("[data-gh200-text]").forEach((text) => showBlock(text.dataset.gh200Text));
  const openTab = () => {
    showAll();
    gh200.openLive?.();
  };

  document.addEventListener("input", (event) => {
    const name = event.target.dataset?.gh200Text;
    if (name) showBlock(name);
  });
  document.addEventListener("change", (event) => {
    if (event.target.dataset?.gh200Key) writeControl(event.target);
  });
  window.addEventListener("trainer-form-values-applied", showAll);

  return { keys, openTab };
})();
