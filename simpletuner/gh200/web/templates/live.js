// The run in our tab: asked for every few seconds while somebody looks at it.
(() => {
  const PAUSE = 5000;
  let timer = 0;

  const size = (bytes) => (bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${(bytes / 1e6).toFixed(1)} MB`);
  const sizes = (kinds) => Object.entries(kinds).map(([kind, bytes]) => `${kind} ${size(bytes)}`).join(", ");
  const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(0)} %` : "-");

  // One line per kind of figure; what a run does not measure has no line.
  const LINES = {
    window: ({ window }) => window && `${window.effective_batch_size} samples in ${window.accumulation_steps} micro-batches`,
    "noise scale": ({ noise }) => noise && `${noise.scale.toFixed(1)} samples`,
    "step time": ({ seconds: s }) =>
      s?.micro_batches && `${(((s.data + s.compute) / s.micro_batches) * 1000).toFixed(0)} ms a micro-batch: data ${share(s.data, s.data + s.compute)}, compute ${share(s.compute, s.data + s.compute)}`,
    HBM: ({ hbm }) => hbm?.total_bytes && `${size(hbm.used_bytes)} of ${size(hbm.total_bytes)} used`,
    "HBM of torch": ({ hbm }) => hbm?.allocated_bytes !== undefined && hbm && `${size(hbm.allocated_bytes)} in tensors, ${size(hbm.reserved_bytes ?? 0)} taken`,
    "managed memory": ({ managed }) => managed && `${size(managed.bytes)}${managed.limit_bytes ? ` of ${size(managed.limit_bytes)}` : ""}${Object.keys(managed.kinds).length ? ` (${sizes(managed.kinds)})` : ""}`,
    "managed memory prefers": ({ managed }) => managed && Object.keys(managed.prefers).length > 0 && sizes(managed.prefers),
    "RAM of the process": ({ host_memory: host }) => host && `${size(host.resident_bytes)}, of it shared ${size(host.shared_bytes)}`,
    "datasets in RAM": ({ datasets }) => Object.entries(datasets ?? {}).map(([id, held]) => `${id} ${size(held.bytes)}, ${held.files} files`).join("; "),
    caches: ({ caches: c }) => c && `${c.entries} entries, ${size(c.filled_bytes)} in ${c.managed ? "managed memory" : "RAM"}${c.limit_bytes ? ` of ${size(c.limit_bytes)}` : ""}`,
    "cache hits": ({ caches: c }) => c && `${c.hits} hits, ${c.misses} misses, ${c.misses_in_training} of them while training`,
    "read ahead": ({ caches: c }) => c?.preload && `${c.preload.entries} of ${c.preload.offered} entries${c.preload.finished ? ", finished" : ""}`,
    hints: ({ hints }) => Object.entries(hints ?? {}).map(([name, ends]) => `${name}: ${Object.entries(ends).map(([end, count]) => `${end} ${count}`).join(", ")}`).join("; "),
    "copies to the GPU": ({ copies }) => copies && `${copies.count}, ${size(copies.bytes)}`,
  };

  const headline = (told, record) => {
    if (told.nothing) return told.nothing;
    const steps = record.total_steps ? `${record.step} of ${record.total_steps}` : record.step;
    const loss = record.loss === undefined ? "" : `, loss ${record.loss.toFixed(4)}`;
    const state = { running: "Training", ended: "Ended", silent: `No word for ${Math.round(told.silent_seconds)} s` }[told.state];
    const missing = told.missing_ranks.length ? `; no records of rank ${told.missing_ranks.join(", ")}` : "";
    return `${state}: step ${steps}${loss}, ${Object.keys(told.ranks).length} of ${record.ranks} ranks${missing}`;
  };

  const draw = (picture, schedule, record) => {
    picture.replaceChildren();
    picture.style.display = schedule?.length ? "" : "none";
    if (!schedule?.length) return;
    const steps = Math.max(record?.total_steps ?? schedule.at(-1)[0] * 1.25, schedule.at(-1)[0], record?.step ?? 0, 1);
    const most = Math.max(...schedule.map(([, batch]) => batch));
    const x = (step) => 40 + (step / steps) * 590;
    const y = (batch) => 100 - (batch / most) * 84;
    const make = (name, attributes, text = "") => {
      const part = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) part.setAttribute(key, value);
      part.textContent = text;
      picture.append(part);
    };
    const points = schedule.flatMap(([step, batch], at) => [[x(step), y(batch)], [x(schedule[at + 1]?.[0] ?? steps), y(batch)]]);
    make("polyline", { points: points.map((point) => point.join(",")).join(" "), fill: "none", stroke: "currentColor", "stroke-width": 2 });
    const words = { fill: "currentColor", "font-size": 11 };
    make("text", { ...words, x: 34, y: y(most) + 4, "text-anchor": "end" }, most);
    make("text", { ...words, x: 630, y: 116, "text-anchor": "end" }, `${Math.round(steps)} steps`);
    if (!record) return;
    const batch = record.window?.effective_batch_size ?? schedule.findLast(([step]) => step <= record.step)?.[1] ?? most;
    make("circle", { cx: x(record.step), cy: y(batch), r: 5, fill: "var(--bs-primary, #0d6efd)", "data-gh200-here": record.step });
    make("text", { ...words, x: Math.min(x(record.step) + 8, 560), y: Math.max(y(batch) - 8, 12) }, "you are here");
  };

  const show = (place, told) => {
    const record = told.ranks && Object.values(told.ranks)[0];
    place.hidden = false;
    place.querySelector("[data-gh200-told]").textContent = headline(told, record);
    draw(place.querySelector("svg"), told.schedule ?? told.planned, record);
    const figures = place.querySelector("[data-gh200-figures]");
    figures.replaceChildren();
    for (const [name, line] of Object.entries(record ? LINES : {})) {
      const text = line(record);
      if (!text) continue;
      const [term, value] = [document.createElement("dt"), document.createElement("dd")];
      [term.textContent, value.textContent] = [name, text];
      figures.append(term, value);
    }
  };

  const look = async () => {
    clearTimeout(timer);
    const place = document.querySelector("[data-gh200-live]");
    if (!place) return;
    if (!document.hidden) {
      try {
        const response = await fetch("/web/trainer/tabs/gh200_live");
        if (response.ok) show(place, await response.json());
      } catch {
        place.querySelector("[data-gh200-told]").textContent = "The server does not answer.";
      }
    }
    timer = setTimeout(look, PAUSE);
  };

  window.gh200.openLive = look;
})();
