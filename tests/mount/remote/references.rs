//! Kerchunk references of files in an object store.

use super::{Client, s3};
use crate::references::{text, write_models, zarr};

#[test]
fn virtualizarr_reads_references_of_an_object_store() {
    let mut client = Client::new();
    write_models(&client.scene);
    let server = s3(&mut client, "models");
    client.ok("weightfs references --flat --chunk 40 --zarr 2 s3://models/plain.safetensors -o refs.json");
    let (refs, plain) = (text(&client.scene, "refs.json"), text(&client.scene, "models/plain.safetensors"));
    assert!(std::fs::read_to_string(&refs).unwrap().contains("[\"s3://models/plain.safetensors\", "));
    let user = &server.hello["users"]["reader"];
    let [endpoint, id, secret] =
        [&server.hello["url"], &user["id"], &user["secret"]].map(|text| text.as_str().unwrap());
    assert_eq!(zarr(["virtual", &refs, &plain, endpoint, id, secret]), "17\n");
}
