"use strict";
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const collator = new Intl.Collator("en", { numeric: true });
  root.classList.add("scripted");

  // an element with its class, text or children; text never becomes markup
  const make = (tag, name, ...inside) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    element.append(...inside.filter((part) => part !== null && part !== undefined));
    return element;
  };

  // ---- colours: those of the system, unless a person has chosen
  const themes = all("[data-theme-to]");
  const paint = (theme) => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    themes.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.themeTo === theme)));
  };
  const remembered = (() => {
    try { return localStorage.getItem("gpunode-theme"); } catch { return null; }
  })();
  themes.forEach((button) => button.addEventListener("click", () => {
    paint(button.dataset.themeTo);
    try { localStorage.setItem("gpunode-theme", button.dataset.themeTo); } catch { /* a page that may keep nothing */ }
  }));
  paint(["light", "dark"].includes(remembered) ? remembered : "auto");

  // ---- sorting: a click sorts up, another one down; what a host has opened stays below its row
  let sorted = () => {};
  const value = (row, column) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
  const sort = (table, column, head) => {
    const down = head.getAttribute("aria-sort") === "ascending";
    all("thead th", table).forEach((other) => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = [...body.rows].filter((row) => !row.classList.contains("detail"));
    const keyed = rows.map((row) => [value(row, column), row]);
    keyed.sort((a, b) => (down ? -1 : 1) * collator.compare(a[0], b[0]));
    const ordered = document.createDocumentFragment();
    keyed.forEach(([, row]) => {
      const below = row.nextElementSibling;
      ordered.append(row);
      if (below?.classList.contains("detail")) ordered.append(below);
    });
    body.append(ordered);
    sorted(table, keyed.map(([, row]) => row));
  };
  all("table.sortable").forEach((table) => [...table.tHead.rows[0].cells].forEach((head, column) =>
    head.firstElementChild.addEventListener("click", () => sort(table, column, head))));

  // ---- what a host's name opens
  const badge = (status) => make("span", `badge ${status}`, status);
  const pair = (name, text) => text ? make("span", "pair", make("span", "quiet", `${name} `), String(text)) : null;
  const headed = (title, ...inside) => [make("h3", "", title), ...inside];
  const table = (name, head, rows, label) => {
    const cell = (tag, text) => make(tag, "", text === null || text === "" ? "–" : String(text));
    const scoped = (text, scope) => Object.assign(cell("th", text), { scope });
    const top = make("tr", "", ...head.map((text) => (text ? scoped(text, "col") : make("td", ""))));
    const line = ([first, ...rest]) => make("tr", "", scoped(first, "row"), ...rest.map((text) => cell("td", text)));
    const made = make("table", name, make("thead", "", top), make("tbody", "", ...rows.map(line)));
    made.setAttribute("aria-label", label);
    return made;
  };
  const far = { X: "", PIX: "pcie", PXB: "pcie", PHB: "pcie", NODE: "far", SYS: "far" };
  const matrix = ([names, links, cpus, numa]) => {
    const rows = names.map((name, i) => [name, ...(links[i] ?? []), cpus[i], numa[i]]);
    const made = table("matrix", ["", ...names, "CPUs", "NUMA"], rows, "How the GPUs are joined");
    [...made.tBodies[0].rows].forEach((row) => [...row.cells].slice(1, names.length + 1).forEach((td) => {
      const near = far[td.textContent] ?? (td.textContent.startsWith("NV") ? "near" : "");
      if (near) td.className = near;
    }));
    return made;
  };
  const trouble = ([index, , , , , , , , ecc, xids]) => index === null ? "failed" : ecc || xids.length ? "warning" : "ok";
  const tiles = (gpus, numa) => {
    const groups = new Map();
    gpus.forEach((gpu) => {
      const node = gpu[0] === null ? "" : numa.get(`GPU${gpu[0]}`) ?? "";
      groups.set(node, [...(groups.get(node) ?? []), gpu]);
    });
    const tile = (gpu) => {
      const made = make("span", `tile ${trouble(gpu)}`, gpu[0] === null ? "✕" : String(gpu[0]), gpu[7] ? make("small", "", `${gpu[7]} MIG`) : null);
      made.title = `${gpu[1]} ${gpu[2]}`;
      return made;
    };
    const group = ([node, found]) => make("span", "", node ? make("span", "quiet", `NUMA ${node}`) : null, ...found.map(tile));
    const made = make("div", "tiles", ...[...groups].map(group));
    made.setAttribute("role", "img");
    const bad = gpus.filter((gpu) => trouble(gpu) !== "ok").length;
    made.setAttribute("aria-label", `${gpus.length} GPUs, ${bad} with trouble; the table has them one by one`);
    return made;
  };
  const hardware = (host) => {
    if (!host.g?.length) return [];
    const gpus = host.g.map(([number]) => data.gpus[number]);
    const topology = host.t === undefined ? null : data.topologies[host.t];
    const numa = new Map((topology?.[0] ?? []).map((name, i) => [name, topology[3][i]]));
    const rows = host.g.map(([number, uuid]) => {
      const [index, slot, model, , memory, driver, mig, cut, ecc, xids] = data.gpus[number];
      return [index, slot, model, memory && `${Math.round(memory / 1024)} GiB`, driver, mig && (cut ? `${mig}, ${cut}` : mig), ecc, xids.join(", "), uuid];
    });
    const head = ["GPU", "slot", "model", "memory", "bound to", "MIG", "ECC errors", "Xids", "UUID"];
    return headed("GPUs and topology", tiles(gpus, numa), make("p", "", pair("NVSwitches", host.s), pair("NVLinks down:", host.d?.join(", "))),
      table("", head, rows, `GPUs of ${host.n}`), ...(topology ? [make("h3", "", "How they are joined"), matrix(topology),
        make("p", "quiet", "NV: NVLinks · PIX, PXB, PHB: within a PCIe root · NODE: within a NUMA node · SYS: between sockets")] : []));
  };
  const finding = (number) => {
    const [id, status, message, fix] = data.findings[number];
    return make("li", "", badge(status), " ", make("code", "", id), ` ${message}`, fix ? make("div", "fix", `do next: ${fix}`) : null);
  };
  const ran = ([wave, state, exit, step, started, ended, took, changed]) => headed("In the run",
    make("p", "", pair("wave", wave), pair("state", state), pair("exit", exit === null ? "" : String(exit)), pair("step", step), pair("began", started), pair("ended", ended), pair("took", took)),
    changed.length ? make("ul", "", ...changed.map((text) => make("li", "", text))) : null);
  const versions = (host) => headed("Versions", make("p", "", pair("class", data.kinds[host.k]),
    ...data.components.map((name, i) => pair(name, data.versions[host.v][i]))));
  const detail = (host, columns) => {
    const cell = make("td", "");
    cell.colSpan = columns;
    cell.append(...[
      ...headed("Findings", host.f.length ? make("ul", "", ...host.f.map(finding)) : null, make("p", "quiet", `${host.p} checks passed`)),
      ...hardware(host), ...(host.v === undefined ? [] : versions(host)), ...(host.r ? ran(host.r) : [])].filter(Boolean));
    return make("tr", "detail", cell);
  };
  const hosts = document.getElementById("table");
  hosts.addEventListener("click", (event) => {
    const button = event.target.closest(".open");
    if (!button) return;
    const row = button.closest("tr");
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) row.nextElementSibling.remove();
    else row.after(detail(data.hosts[row.dataset.n], [...row.cells].filter((one) => one.offsetWidth).length));
  });

  // ---- filters: words, pool, state, and what was picked among problems and versions
  const [find, pool, state] = ["find", "pool", "state"].map((id) => document.getElementById(id));
  const [picked, shown, form] = ["#picked", "#shown", ".filters"].map((selector) => document.querySelector(selector));
  const more = document.getElementById("more");
  const known = (host) => [...host.f.map((number) => data.findings[number].join(" ")), data.kinds[host.k], data.versions[host.v]?.join(" ")];
  let rows = all("tbody > tr", hosts).map((row) => {
    const host = data.hosts[row.dataset.n];
    const state = row.cells[1].textContent;
    return { row, host, pool: row.cells[2].textContent, state, text: [row.textContent, ...known(host)].join(" ").toLowerCase() };
  });
  const few = 300; // rows that are drawn before somebody asks for all
  let most = few;
  let pick = null;
  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    rows.forEach((one) => {
      const fits = words.every((word) => one.text.includes(word)) && (!pool.value || one.pool === pool.value) &&
        (!state.value || (state.value === "!ok" ? one.state !== "ok" : one.state === state.value)) && (!pick || pick(one.host));
      count += fits;
      one.row.hidden = !fits || count > most;
      const below = one.row.nextElementSibling;
      if (below?.classList.contains("detail")) below.hidden = one.row.hidden;
    });
    more.hidden = count <= most;
    more.firstElementChild.textContent = `show all ${count} (the first ${most} are shown)`;
    shown.textContent = count === rows.length ? String(count) : `${count} of ${rows.length}`;
    all(".chip").forEach((chip) => chip.setAttribute("aria-pressed", String(chip.dataset.state === state.value)));
  };
  sorted = (which, order) => {
    if (which !== hosts) return;
    const places = new Map(order.map((row, place) => [row, place]));
    rows = [...rows].sort((a, b) => places.get(a.row) - places.get(b.row));
    filter();
  };
  more.addEventListener("click", () => {
    most = Infinity;
    filter();
  });
  const choose = (test, label) => {
    pick = test;
    picked.hidden = !test;
    picked.firstElementChild.textContent = label;
    filter();
  };
  const goToHosts = () => {
    const section = document.getElementById("hosts");
    section.focus({ preventScroll: true });
    section.scrollIntoView();
  };
  all(".pick").forEach((button) => button.addEventListener("click", () => {
    const { issue, kind, component, version, label } = button.dataset;
    choose(issue !== undefined ? (host) => host.i.includes(Number(issue))
      : (host) => host.v !== undefined && data.kinds[host.k] === kind && data.versions[host.v][component] === version, label);
    goToHosts();
  }));
  all(".chip").forEach((chip) => chip.addEventListener("click", () => {
    state.value = state.value === chip.dataset.state ? "" : chip.dataset.state;
    filter();
    if (state.value) goToHosts();
  }));
  document.getElementById("unpick").addEventListener("click", () => choose(null, ""));
  ["input", "change"].forEach((kind) => form.addEventListener(kind, filter));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => choose(null, "")));
  document.addEventListener("keydown", (event) => {
    const typing = /^(input|select|textarea)$/i.test(event.target.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      find.focus();
    } else if (event.key === "Escape" && event.target === find) {
      find.value = "";
      filter();
    }
  });
  filter();
  root.classList.remove("loading");
})();
