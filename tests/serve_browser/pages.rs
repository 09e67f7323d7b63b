//! What pages show and do.

use crate::browser::Browser;
use crate::server::{Server, browser_is_here, real_model, write_model, write_sized_model};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use tempfile::TempDir;

/// The names in the table of tensors.
const NAMES: &str = "#rows tbody td:first-child";

/// Whether texts are in this order, by the numbers and other parts in them.
fn ascends<T: PartialOrd>(values: &[T]) -> bool {
    values.windows(2).all(|pair| pair[0] <= pair[1])
}

/// Checks that nothing was requested from another host, and that the console has no message.
fn is_quiet(browser: &Browser, server: &Server) {
    let requested = browser.requested();
    assert!(requested.iter().any(|url| url.contains("style.css")), "{requested:?}");
    let foreign: Vec<_> = requested.iter().filter(|url| !url.starts_with(&format!("{}/", server.url))).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    assert_eq!(browser.console(), [""; 0]);
    assert!(!browser.has_dialogue());
}

/// Opens, sorts, filters and descends as a person does, with or without scripts.
fn visit_model(browser: &Browser, server: &Server) {
    browser.open(&format!("{}/", server.url));
    assert_eq!(browser.text("document.querySelector('h1').textContent"), "all-minilm.safetensors");
    let facts = browser.text("document.querySelector('dl').innerText");
    assert!(facts.contains("22.7M") && facts.contains("F32: 90.9 MB in 103 tensors"), "{facts}");
    let all = browser.texts(NAMES);
    assert_eq!(all.len(), 104);
    browser.click("#rows th:nth-child(4) a");
    browser.wait("document.querySelector('#rows th[aria-sort]')?.ariaSort === 'descending'");
    assert_eq!(browser.texts(NAMES)[0], "embeddings.word_embeddings.weight");
    browser.click("#rows th:nth-child(1) a");
    browser.wait("document.querySelector('#rows th[aria-sort]')?.innerText.startsWith('Name')");
    let (mut sorted, names) = (all.clone(), browser.texts(NAMES));
    sorted.sort();
    assert_eq!((names.len(), &names), (104, &sorted));
    browser.click("#rows th:nth-child(1) a");
    browser.wait("document.querySelector('#rows th[aria-sort]').ariaSort === 'descending'");
    sorted.reverse();
    assert_eq!(browser.texts(NAMES), sorted);
    browser.type_into("input[type=search]", "LAYER.3 query");
    if browser.value("!!window.swap") == json!(true) {
        browser.wait("document.querySelectorAll('#rows tbody tr').length < 104");
    } else {
        browser.click("form button");
    }
    browser.wait("document.querySelectorAll('#rows tbody tr').length === 2");
    let filtered = ["encoder.layer.3.attention.self.query.weight", "encoder.layer.3.attention.self.query.bias"];
    assert_eq!(browser.texts(NAMES), filtered, "the order is kept");
    assert!(browser.text("location.search").contains("q=LAYER.3"), "{}", browser.text("location.search"));
    // Down into the map, and up again.
    browser.open(&format!("{}/", server.url));
    let boxes = browser.texts("#map svg a title").len();
    browser.click("#map svg a[href='?prefix=encoder.layer.5.output#map'] rect");
    browser.wait("location.search === '?prefix=encoder.layer.5.output'");
    let titles = browser.texts("#map svg a title");
    assert!(titles.iter().any(|title| title.starts_with("dense: 2.36 MB, 99.9 % in 2 tensors")), "{titles:?}");
    browser.click("#map p a[href='?prefix=encoder#map']");
    browser.wait("location.search === '?prefix=encoder'");
    let titles = browser.texts("#map svg a title");
    assert!(titles.iter().any(|title| title.starts_with("5: 7.10 MB, 16.7 % in 16 tensors")), "{titles:?}");
    browser.click("#map p a");
    browser.wait("location.search === ''");
    assert_eq!(browser.texts("#map svg a title").len(), boxes);
    is_quiet(browser, server);
}

#[test]
fn model_is_sorted_filtered_and_mapped_with_and_without_scripts() {
    if !browser_is_here() {
        return;
    }
    let (browser, server) = (Browser::start(), Server::start(&real_model(), &[]));
    visit_model(&browser, &server);
    browser.open(&format!("{}/", server.url));
    browser.value("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))");
    assert_eq!(browser.value("document.activeElement.type"), "search");
    browser.without_scripts();
    visit_model(&browser, &server);
}

#[test]
fn tensor_has_its_picture_and_the_figures_of_stats() {
    if !browser_is_here() {
        return;
    }
    let (browser, server) = (Browser::start(), Server::start(&real_model(), &[]));
    browser.open(&format!("{}/?q=position_embeddings", server.url));
    browser.click("#rows tbody a");
    browser.wait("document.querySelector('img')?.naturalWidth > 0");
    let name = browser.text("document.querySelector('h1').textContent");
    assert_eq!(name, "embeddings.position_embeddings.weight");
    let stats: Value = serde_json::from_slice(&Server::cat(&real_model(), &format!("stats/{name}.json"))).unwrap();
    let shown =
        browser.value("[...document.querySelectorAll('[data-figure]')].map(e => [e.dataset.figure, e.innerText])");
    let shown: Vec<(String, String)> = serde_json::from_value(shown).unwrap();
    assert!(shown.len() >= 8, "{shown:?}");
    for (key, value) in &shown {
        assert_eq!(serde_json::from_str::<Value>(value).unwrap(), stats[key], "{key}");
    }
    let links = browser.value("[...document.querySelectorAll('table a')].map(a => a.href)");
    let links: Vec<String> = serde_json::from_value(links).unwrap();
    assert!(links.iter().any(|link| link.contains("/npy/")) && links.len() >= 6, "{links:?}");
    for link in links {
        let status = format!("(async () => (await fetch({link:?}, {{method: 'HEAD'}})).status)()");
        assert_eq!(browser.value(&status), 200, "{link}");
    }
    browser.click("a[rel=next]");
    browser.wait(&format!("document.querySelector('h1').textContent !== {name:?}"));
    browser.click("a[rel=prev]");
    browser.wait(&format!("document.querySelector('h1').textContent === {name:?}"));
    browser.wait("document.querySelector('img').naturalWidth > 0");
    is_quiet(&browser, &server);
}

#[test]
fn hostile_names_run_nothing_and_break_no_layout() {
    if !browser_is_here() {
        return;
    }
    let scratch = TempDir::new().unwrap();
    let path = scratch.path().join("<img src=x onerror=alert(1)>.safetensors");
    let script = "<script>alert(1)</script>";
    let names: Vec<String> = [
        script.to_owned(),
        "\"><svg onload=alert(1)>".to_owned(),
        "' onmouseover='alert(1)".to_owned(),
        "javascript:alert(1)".to_owned(),
        "\u{202e}gnp.\u{7}\u{1b}[31m\u{0}".to_owned(),
        "../../etc/passwd?x=1#y".to_owned(),
        "%3Cscript%3E".to_owned(),
        "..a..b..".to_owned(),
        ".".repeat(60_000),
        "x".repeat(60_000),
        format!("{}{script}", "a.".repeat(5_000)),
        String::new(),
    ]
    .into();
    write_model(&path, &names, &[(script, script), ("long", &"<b>".repeat(50_000)), ("\u{202e}", "'\"<\u{0}")]);
    let (browser, server) = (Browser::start(), Server::start(scratch.path(), &[]));
    browser.resize(400, 800);
    browser.open(&format!("{}/", server.url));
    if browser.value("!!document.querySelector('#tensors')") != json!(true) {
        browser.click("tbody a");
    }
    browser.wait("document.querySelectorAll('#tensors tbody tr').length === 12");
    let base = browser.text("location.origin + location.pathname");
    let mut pages = vec![format!("{base}?q=%3Cscript%3E&sort=%22%3E%3Cscript%3E&prefix=%3Cscript%3E&page=%22%3E")];
    for prefix in ["..", ".", "a", "..a", "..a.", "%00", &"a.".repeat(500), &".".repeat(60)] {
        pages.push(format!("{base}?prefix={prefix}"));
    }
    for page in ["0", "-1", "18446744073709551615", "99999999999999999999999", "x"] {
        pages.push(format!("{base}?page={page}"));
    }
    pages.extend((0..names.len()).map(|tensor| format!("{base}?tensor={tensor}")));
    for page in pages {
        browser.open(&page);
        assert!(!browser.has_dialogue(), "{page}");
        assert_eq!(browser.value("document.scripts.length"), 1, "{page}");
        let width = "document.documentElement.scrollWidth <= document.documentElement.clientWidth";
        assert_eq!(browser.value(width), json!(true), "{page} is too wide");
        let attributes =
            "[...document.querySelectorAll('*')].every(e => [...e.attributes].every(a => !/^on/.test(a.name)))";
        assert_eq!(browser.value(attributes), json!(true), "{page}");
        assert_eq!(browser.value("document.querySelectorAll('main b, main svg[onload], main script').length"), 0);
        let ways = "[...document.links].every(a => a.origin === location.origin)";
        assert_eq!(browser.value(ways), json!(true), "{page}");
    }
    is_quiet(&browser, &server);
}

#[test]
fn hundred_thousand_tensors_have_pages_and_a_map() {
    if !browser_is_here() {
        return;
    }
    let scratch = TempDir::new().unwrap();
    let path = scratch.path().join("large.safetensors");
    let names: Vec<String> = (0..100_000).map(|at| format!("layers.{}.experts.{}.w", at / 1000, at % 1000)).collect();
    write_model(&path, &names, &[]);
    let (browser, server) = (Browser::start(), Server::start(&path, &["--views", "npy"]));
    browser.open(&format!("{}/?sort=-name&page=500", server.url));
    let names = browser.texts(NAMES);
    assert_eq!((names.len(), &names[199][..]), (200, "layers.0.experts.0.w"));
    assert!(browser.texts(".pages")[0].contains("page 500 of 500"), "{:?}", browser.texts(".pages"));
    let numbers: Vec<u32> = names.iter().rev().map(|name| name.split('.').nth(3).unwrap().parse().unwrap()).collect();
    assert!(ascends(&numbers), "{numbers:?}");
    let boxes = browser.texts("#map svg title").len();
    assert!((10..=500).contains(&boxes), "{boxes}");
    browser.type_into("input[type=search]", "layers.99.experts.99.");
    browser.wait("document.querySelectorAll('#rows tbody tr').length === 1");
    assert_eq!(browser.texts(NAMES), ["layers.99.experts.99.w"]);
    // Only what is there has links.
    browser.click("#rows tbody a");
    browser.wait("document.querySelector('h1').textContent === 'layers.99.experts.99.w'");
    assert_eq!(browser.texts("table a"), ["npy/layers.99.experts.99.w.npy"]);
    assert_eq!(browser.value("document.images.length"), 0);
    is_quiet(&browser, &server);
}

/// The sizes of a monitor and of a phone, in pixels.
const SIZES: [(u32, u32); 2] = [(1440, 1080), (390, 844)];

/// Two layers of 256 experts of equal size.
fn write_experts(path: &Path) {
    let names: Vec<String> = (0..512).map(|at| format!("layers.{}.experts.{}.w", at / 256, at % 256)).collect();
    write_model(path, &names, &[]);
}

/// The URLs of the links in a map, which are queries.
fn map_links(browser: &Browser, class: &str, page: &str) -> Vec<String> {
    let links = format!(
        "(async () => {{
            const page = new DOMParser().parseFromString(await (await fetch({page:?})).text(), 'text/html');
            return [...page.querySelectorAll('#map svg.{class} > *')].map(tile => tile.getAttribute('href'));
        }})()"
    );
    let links: Vec<Option<String>> = serde_json::from_value(browser.value(&links)).unwrap();
    links.into_iter().map(|link| link.unwrap_or_else(|| panic!("{page}: a tile without a link"))).collect()
}

#[test]
fn links_of_the_map_lead_to_all_tensors() {
    if !browser_is_here() {
        return;
    }
    let scratch = TempDir::new().unwrap();
    let path = scratch.path().join("model.safetensors");
    let mut tensors = vec![("embedding".to_owned(), 1_000_000), ("norm".to_owned(), 1), ("scale".to_owned(), 1)];
    for layer in 0..300 {
        tensors.push((format!("flat.layer{layer}_weight"), 1_000));
        tensors.push((format!("flat.layer{layer}_bias"), 1));
    }
    for expert in 0..600 {
        tensors.push((format!("layers.0.experts.{expert}.up"), 100));
    }
    write_sized_model(&path, &tensors, &[]);
    let (browser, server) = (Browser::start(), Server::start(&path, &[]));
    browser.open(&format!("{}/", server.url));
    for class in ["broad", "narrow"] {
        let (mut seen, mut queue) = (BTreeSet::new(), vec!["?".to_owned()]);
        while let Some(page) = queue.pop() {
            let links = map_links(&browser, class, &page);
            assert!((1..=500).contains(&links.len()), "{page}: {} links", links.len());
            for link in links.iter().map(|link| link.trim_end_matches("#map").to_owned()) {
                if seen.insert(link.clone()) && !link.starts_with("?tensor=") {
                    queue.push(link);
                }
            }
        }
        let found = seen.iter().filter(|link| link.starts_with("?tensor=")).count();
        assert_eq!(found, tensors.len(), "{class}");
    }
}

#[test]
fn experts_have_tiles_of_equal_size() {
    if !browser_is_here() {
        return;
    }
    let scratch = TempDir::new().unwrap();
    let path = scratch.path().join("experts.safetensors");
    write_experts(&path);
    let (browser, server) = (Browser::start(), Server::start(&path, &[]));
    for (width, height) in SIZES {
        let shown = if width > 1000 { "broad" } else { "narrow" };
        browser.resize(width, height);
        browser.open(&format!("{}/?prefix=layers.1", server.url));
        let titles = browser.texts(&format!("svg.{shown} title"));
        assert_eq!(titles.len(), 256);
        assert!(titles.contains(&"200.w: 4 B, 0.4 % in 1 tensor".to_owned()), "{titles:?}");
        let areas = format!(
            "[...document.querySelectorAll('svg.{shown} rect')].map(rect => rect.getBoundingClientRect()).map(
                area => area.width * area.height)"
        );
        let areas: Vec<f64> = serde_json::from_value(browser.value(&areas)).unwrap();
        let (least, most) = areas.iter().fold((f64::MAX, 0.0_f64), |(a, b), area| (a.min(*area), b.max(*area)));
        assert!(least > 400.0 && most < 1.5 * least, "{least} to {most} pixels");
        browser.click(&format!("svg.{shown} a[href='?tensor=456'] rect"));
        browser.wait("document.querySelector('h1').textContent === 'layers.1.experts.200.w'");
    }
    // In the map of all layers, neighbours share tiles.
    browser.open(&format!("{}/", server.url));
    browser.click("svg.narrow a[href^='?prefix=layers.0.experts&part=9-10-'] rect");
    browser.wait("location.search.startsWith('?prefix=layers.0.experts&part=')");
    assert!(
        browser.texts("#map p")[0].contains("experts . 8.w – 9.w: 8 B in 2 tensors"),
        "{:?}",
        browser.texts("#map p")
    );
    browser.click("svg.narrow a[href='?tensor=9'] rect");
    browser.wait("document.querySelector('h1').textContent === 'layers.0.experts.9.w'");
    is_quiet(&browser, &server);
}

#[test]
fn map_fits_the_width_of_a_phone() {
    if !browser_is_here() {
        return;
    }
    let scratch = TempDir::new().unwrap();
    let path = scratch.path().join("experts.safetensors");
    write_experts(&path);
    let (browser, server) = (Browser::start(), Server::start(&path, &[]));
    browser.resize(390, 844);
    for (is_scripted, scheme) in [(true, "light"), (true, "dark"), (false, "dark"), (false, "light")] {
        if !is_scripted {
            browser.without_scripts();
        }
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        browser.devtools("Emulation.setEmulatedMedia", json!({"features": features}));
        for query in ["", "?prefix=layers.0.experts"] {
            browser.open(&format!("{}/{query}", server.url));
            let width = "[...document.querySelectorAll('#map svg')].map(map => map.getBoundingClientRect().width)";
            let main = browser.value("document.querySelector('main').clientWidth");
            assert!(main.as_f64().unwrap() <= 350.0, "{main}");
            assert_eq!(browser.value(width), json!([0, main]), "one map is shown, between the margins of the page");
            let scrolls = "document.querySelector('#map').scrollWidth > document.querySelector('#map').clientWidth";
            assert_eq!(browser.value(scrolls), false, "{query}");
            let heights = "[...document.querySelectorAll('svg.narrow text')].map(
                text => text.getBoundingClientRect().height)";
            let heights: Vec<f64> = serde_json::from_value(browser.value(heights)).unwrap();
            assert!(heights.len() > 1 && heights.iter().all(|height| *height >= 10.0), "{query} {heights:?}");
        }
    }
    is_quiet(&browser, &server);
}

/// Checks that the filter and the first row of the table are in the window.
fn first_row_is_visible(browser: &Browser) {
    for selector in ["input[type=search]", "#rows tbody tr"] {
        let area = format!("document.querySelector({selector:?}).getBoundingClientRect()");
        let edges = browser.value(&format!("[{area}.top, {area}.bottom, innerHeight]"));
        let [top, bottom, height]: [f64; 3] = serde_json::from_value(edges).unwrap();
        assert!(0.0 <= top && bottom <= height, "{selector} is at {top} to {bottom} of {height}");
    }
}

#[test]
fn found_tensors_are_visible_while_typing_and_their_number_is_announced() {
    if !browser_is_here() {
        return;
    }
    let scratch = TempDir::new().unwrap();
    let path = scratch.path().join("experts.safetensors");
    write_experts(&path);
    let (browser, server) = (Browser::start(), Server::start(&path, &[]));
    for (width, height) in SIZES {
        browser.resize(width, height);
        browser.open(&format!("{}/", server.url));
        assert_eq!(browser.value("document.querySelectorAll('[role=status][aria-live=polite]').length"), 1);
        assert_eq!(browser.texts("[role=status]"), ["512 tensors"]);
        browser.value("document.querySelector('[role=status]').isFirst = true");
        browser.type_into("input[type=search]", "experts.77.");
        browser.wait("document.querySelectorAll('#rows tbody tr').length === 2");
        assert_eq!(browser.texts("[role=status]"), ["2 tensors of 512"]);
        assert_eq!(browser.value("document.querySelector('[role=status]').isFirst"), true, "the region is replaced");
        assert_eq!(browser.value("document.activeElement.type"), "search");
        first_row_is_visible(&browser);
        // Without words, the map is there again.
        let (control, release, backspace) = ('\u{e009}', '\u{e000}', '\u{e003}');
        browser.type_into("input[type=search]", &format!("{control}a{release}{backspace}"));
        browser.wait("!!document.querySelector('#map svg') && location.search === ''");
        assert_eq!(browser.texts("[role=status]"), ["512 tensors"]);
    }
    is_quiet(&browser, &server);
    browser.without_scripts();
    for (width, height) in SIZES {
        browser.resize(width, height);
        browser.open(&format!("{}/?q=experts.77.", server.url));
        assert_eq!(browser.texts("[role=status]"), ["2 tensors of 512"]);
        first_row_is_visible(&browser);
    }
}

#[test]
fn sorting_keeps_the_focus_with_and_without_scripts() {
    if !browser_is_here() {
        return;
    }
    let (browser, server) = (Browser::start(), Server::start(&real_model(), &[]));
    for is_scripted in [true, false] {
        if !is_scripted {
            browser.without_scripts();
        }
        browser.open(&format!("{}/?q=layer", server.url));
        for order in ["descending", "ascending"] {
            // Enter follows the link.
            browser.type_into("#rows th:nth-child(4) a", "\u{e007}");
            browser.wait(&format!("document.querySelector('#rows th:nth-child(4)')?.ariaSort === '{order}'"));
            browser.wait("document.activeElement === document.querySelector('#rows th:nth-child(4) a')");
        }
    }
    is_quiet(&browser, &server);
}

#[test]
fn links_in_text_are_underlined() {
    if !browser_is_here() {
        return;
    }
    let scratch = TempDir::new().unwrap();
    let path = scratch.path().join("experts.safetensors");
    write_experts(&path);
    let (browser, server) = (Browser::start(), Server::start(&path, &[]));
    browser.open(&format!("{}/?prefix=layers.0&page=2", server.url));
    for selector in ["nav a", ".pages a[rel=prev]", ".pages a[rel=next]", "#map p a"] {
        let line = format!("getComputedStyle(document.querySelector({selector:?})).textDecorationLine");
        assert_eq!(browser.text(&line), "underline", "{selector}");
    }
}
