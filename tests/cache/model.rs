//! Random operations, compared with a map of blocks.

use crate::support::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use weightfs::remote::cache::{BlockCache, CachedObject};
use weightfs::source::pins::{BLOCK, PinnedBlocks, PinnedReader};

/// Three segments and a bit more.
const LEN: u64 = 200 * BLOCK - 777;

const OBJECTS: u64 = 2;

#[derive(Debug, Clone)]
enum Step {
    /// Writes these bytes of an object, in pieces of this size.
    Write(u64, u64, u64, u64),
    /// Looks for these blocks.
    Has(u64, u64, u64),
    Evict(u64),
    Pin(u64, u64),
    Unpin,
    /// Opens the cache again, with this boot id.
    Reopen(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let (object, at) = (0..OBJECTS, 0..LEN);
    prop_oneof![
        6 => (object.clone(), at.clone(), 1..40 * BLOCK, 1000..5 * BLOCK).prop_map(|(o, a, l, p)| Step::Write(o, a, l, p)),
        3 => (object.clone(), 0..200u64, 1..100u64).prop_map(|(o, a, l)| Step::Has(o, a, l)),
        2 => (1..9 * BLOCK * 64).prop_map(Step::Evict),
        2 => (object, at).prop_map(|(o, a)| Step::Pin(o, a)),
        1 => Just(Step::Unpin),
        1 => (0..3u8).prop_map(Step::Reopen),
    ]
}

/// What should be in the cache.
struct Model {
    cache: BlockCache,
    objects: Vec<Arc<CachedObject>>,
    readers: Vec<Arc<PinnedReader>>,
    /// Whether each block is present, by object and block.
    blocks: BTreeMap<(u64, u64), bool>,
    pinned: Vec<(u64, u64, PinnedBlocks)>,
}

impl Model {
    fn open(dir: &std::path::Path, boot: u8) -> Self {
        let cache = open_in_boot(dir, &boot.to_string());
        let objects: Vec<_> = (0..OBJECTS).map(|number| cache.object(&key(number, LEN)).unwrap()).collect();
        let readers = objects.iter().map(|object| reader(object)).collect();
        Self { cache, objects, readers, blocks: BTreeMap::new(), pinned: Vec::new() }
    }

    fn evicted(&mut self, evicted: &[(Arc<CachedObject>, Range<u64>)]) {
        for (object, blocks) in evicted {
            let number = self.objects.iter().position(|known| Arc::ptr_eq(known, object)).unwrap() as u64;
            for block in blocks.clone() {
                assert!(!self.pinned.iter().any(|pin| (pin.0, pin.1) == (number, block)), "a pinned block was evicted");
                self.blocks.remove(&(number, block));
            }
        }
    }

    fn check(&self, number: u64, blocks: Range<u64>) {
        let object = &self.objects[number as usize];
        let found: Vec<u64> = object.has(blocks.clone()).unwrap().into_iter().flatten().collect();
        let expected: Vec<u64> = blocks.filter(|block| self.blocks.contains_key(&(number, *block))).collect();
        assert_eq!(found, expected);
        for block in found {
            let range = bytes_of(object, block..block + 1);
            let mut bytes = vec![0; (range.end - range.start) as usize];
            object.data().read_exact_at(&mut bytes, range.start).unwrap();
            assert!(bytes == content(number, range));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn cache_agrees_with_a_map_of_blocks(steps in vec(step(), 1..40)) {
        let dir = tempdir();
        let mut model = Model::open(dir.path(), 0);
        for step in steps {
            match step {
                Step::Write(number, at, len, piece) => {
                    let end = (at + len).min(LEN);
                    let mut from = at;
                    while from < end {
                        let to = (from + piece).min(end);
                        let written = model.objects[number as usize].write(from, &content(number, from..to)).unwrap();
                        assert!(model.cache.take_evicted().is_empty());
                        for block in written {
                            model.blocks.insert((number, block), true);
                        }
                        from = to;
                    }
                    // All whole blocks that were written are there.
                    let whole = at.div_ceil(BLOCK)..if end == LEN { end.div_ceil(BLOCK) } else { end / BLOCK };
                    for block in whole {
                        assert!(model.blocks.contains_key(&(number, block)));
                    }
                }
                Step::Has(number, at, len) => model.check(number, at..(at + len).min(200)),
                Step::Evict(bytes) => {
                    let present = model.blocks.len() as u64;
                    let room = model.cache.evict(bytes).unwrap();
                    model.evicted(&model.cache.take_evicted());
                    assert_eq!(room.lacking, bytes.saturating_sub(room.freed));
                    let gone = present - model.blocks.len() as u64;
                    assert!(room.freed.abs_diff(gone * BLOCK) <= 2 * BLOCK, "{} of {gone} blocks", room.freed);
                    if room.lacking > 0 {
                        let pinned: BTreeSet<_> = model.pinned.iter().map(|pin| (pin.0, pin.1)).collect();
                        assert_eq!(model.blocks.len(), pinned.len());
                    }
                }
                Step::Pin(number, at) => {
                    let block = at / BLOCK;
                    _ = model.objects[number as usize].has(block..block + 1).unwrap();
                    let pin = model.readers[number as usize].pin(at..at + 1);
                    assert_eq!(pin.is_ok(), model.blocks.contains_key(&(number, block)));
                    model.pinned.extend(pin.ok().map(|pin| (number, block, pin)));
                }
                Step::Unpin => model.pinned.clear(),
                Step::Reopen(boot) => {
                    let blocks = std::mem::take(&mut model.blocks);
                    drop(model);
                    model = Model::open(dir.path(), boot);
                    model.blocks = blocks;
                }
            }
        }
        for number in 0..OBJECTS {
            model.check(number, 0..200);
        }
    }
}
