//! Quantized models on servers: their configuration and companions are found there.

use super::{Client, hub, requests, web};
use crate::quantized::write_case;
use crate::support::{Mount, require_fuse, wait_until};
use crate::vectors::{Case, cases, floats, is_same};
use std::fs;

/// Schemes whose values depend on the configuration, on small tensors, or on companions in another shard.
const CASES: [&str; 7] = [
    "fp8_block",
    "gptq_4_v2_order",
    "awq",
    "bnb_nf4_nested_ragged",
    "ct_packed_4_channel_ragged",
    "hqq_2_axis1_16_view",
    "aqlm_2x8_1x8",
];

fn chosen() -> Vec<Case> {
    let chosen: Vec<Case> = cases().into_iter().filter(|case| CASES.contains(&&*case.name)).collect();
    assert_eq!(chosen.len(), CASES.len());
    chosen
}

fn assert_right(mount: &Mount, model: &str, case: &Case) {
    let expected = &case.expected.tensors[0];
    let found = mount.read(format!("{model}f32/{}.f32", expected.name));
    let found: Vec<f32> = found.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let floats = floats(expected);
    let is_right = found.len() == floats.len()
        && found.iter().zip(&floats).all(|(found, expected)| is_same(*found, *expected, case.zero_sign));
    assert!(is_right, "{}", case.name);
}

#[test]
fn values_are_those_of_local_files() {
    require_fuse!();
    let mut client = Client::new();
    let cases = chosen();
    for case in &cases {
        for (kind, is_sharded) in [("one", false), ("sharded", true)] {
            write_case(&client.scene.path("models").join(&case.name).join(kind), case, is_sharded);
        }
    }
    let nginx = web(&client, "models");
    for case in &cases {
        // A server that lists no files.
        for file in ["one/model.safetensors", "sharded/model.safetensors.index.json"] {
            let mount = client.mount(&nginx.url(&format!("{}/{file}", case.name)), &[]);
            assert_right(&mount, "", case);
            let local = client.scene.mount(&client.scene.path(format!("models/{}/{file}", case.name)), &[]);
            let export = "export/model-bf16.safetensors";
            assert!(mount.read(export) == local.read(export), "{}: {file}", case.name);
            assert_eq!(mount.log(), "");
        }
    }
    // Models of a repository are opened in the sandbox.
    let _hub = hub(&mut client, "models");
    let mount = client.mount("hf://org/model", &[]);
    for case in &cases {
        for kind in ["one", "sharded"] {
            assert_right(&mount, &format!("{}/{kind}/model/", case.name), case);
        }
    }
}

#[test]
fn configuration_is_fetched_for_quantized_models_only() {
    require_fuse!();
    let client = Client::new();
    let case = cases().into_iter().find(|case| case.name == "fp8_block").unwrap();
    write_case(&client.scene.path("models/fp8"), &case, false);
    client.one("models/plain/model.safetensors", 1000, 1);
    fs::copy(client.scene.path("models/fp8/config.json"), client.scene.path("models/plain/config.json")).unwrap();
    let nginx = web(&client, "models");
    client.ok(&format!("weightfs inspect {}", nginx.url("plain/model.safetensors")));
    let said = client.ok(&format!("weightfs inspect {}", nginx.url("fp8/model.safetensors")));
    assert!(said.contains("FP8"), "{said}");
    // nginx writes its log after the response.
    wait_until("the requests are in the log", || !requests(&nginx, "fp8/config.json").is_empty());
    assert_eq!(requests(&nginx, "fp8/config.json").len(), 1);
    assert_eq!(requests(&nginx, "fp8/model.safetensors").len(), 1);
    assert_eq!(requests(&nginx, "plain/config.json"), []);
}
