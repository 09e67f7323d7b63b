//! What pages show and do.

use crate::browser::Browser;
use crate::server::{Server, browser_is_here, real_model, write_model};
use serde_json::{Value, json};
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
    browser.devtools(
        "Emulation.setDeviceMetricsOverride",
        json!({"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": false}),
    );
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
