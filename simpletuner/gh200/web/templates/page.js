// Guards saves of configs with blocks of the fork's, whichever tab is open.
(() => {
  const keys = GH200_KEYS;
  const seen = {};
  let replaces = "";
  const upstreamFetch = window.fetch.bind(window);

  const addressOf = (input) => new URL(input instanceof Request ? input.url : String(input), location.href);

  // The answer the page was filled from, kept as it came: a save says what it was made of.
  const keepSeen = async (response) => {
    try {
      const text = await response.clone().text();
      const name = JSON.parse(text).name;
      if (name) seen[name] = text;
    } catch {
      // Not a config; upstream says what it thinks of it.
    }
  };

  const addToSave = (form) => {
    const store = window.Alpine?.store("trainer");
    const text = seen[store?.activeEnvironment];
    if (!text) return;
    form.set("gh200_seen", text);
    if (replaces) form.set("gh200_replaces", replaces);
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
  const showRejection = async (response) => {
    document.querySelector("[data-gh200-rejected]")?.remove();
    const place = document.getElementById("validation-results");
    if (response.ok || !place) return;
    const detail = await response.clone().json().then((answer) => answer.detail, () => "");
    if (!String(detail).startsWith("Nothing was saved")) return;
    const message = document.createElement("div");
    message.className = "alert alert-danger";
    message.setAttribute("role", "alert");
    message.dataset.gh200Rejected = "";
    message.innerHTML = detail;
    place.append(message);
  };

  window.fetch = async (input, options = {}) => {
    const address = addressOf(input);
    const method = (options.method || "GET").toUpperCase();
    const save = method === "POST" && address.pathname === "/api/training/config" && options.body instanceof FormData;
    if (save) addToSave(options.body);
    const response = await upstreamFetch(input, options);
    if (save) {
      replaces = response.headers.get("X-GH200-On-Disk") || "";
      await showRejection(response);
    }
    const config = /^\/api\/configs\/[^/]+$/.test(address.pathname) && address.searchParams.has("t");
    if (config && method === "GET" && response.ok) await keepSeen(response);
    return response;
  };
})();
