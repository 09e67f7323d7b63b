//! A recipe on a server, with its sources there.

use super::{Client, web};
use crate::recipes::{RecipeCase, assert_equal_views, write_cases};
use crate::support::require_fuse;

#[test]
fn every_view_of_a_remote_recipe_is_that_of_the_same_tensors_in_one_file() {
    require_fuse!();
    let client = Client::new();
    let cases = write_cases(&client.scene);
    let nginx = web(&client, "models");
    for RecipeCase { recipe, plain, .. } in cases {
        let path = recipe.strip_prefix(client.scene.path("models")).unwrap().to_str().unwrap();
        let mount = client.mount(&nginx.url(path), &[]);
        assert_equal_views(&mount, &client.scene.mount(&plain, &[]));
    }
}
