//! The MTP head: complete, absent, partial, announced or not, elsewhere.

use crate::support::{Copy, Tensors, asset, message, says, write};
use engine::weights::{Checkpoint, Head, MtpFrom, Options};

const FC: &str = "mtp.fc.weight";

fn open(copy: &Copy, mtp: MtpFrom) -> engine::Result<Checkpoint> {
    Checkpoint::open_with(copy.path(), &Options { mtp })
}

fn drop_head(tensors: &mut Tensors) {
    tensors.retain(|name, _| !name.starts_with("mtp."));
}

#[test]
fn announced_but_absent_loads_and_says_so() {
    let copy = Copy::dense();
    let checkpoint = copy.edit(drop_head).open().unwrap();
    assert!(checkpoint.mtp().is_none());
    assert_eq!((checkpoint.verdict().head, checkpoint.config().mtp_layers), (Head::Absent, 0));
    says(&checkpoint.verdict().to_string(), &["no speculation", "announces one", "no mtp.* tensors"]);
    says(&message(checkpoint.require_mtp()), &["MTP", "announces one", "fetch the shard"]);
}

#[test]
fn present_but_not_announced_loads_and_says_so() {
    let copy = Copy::dense();
    copy.config(|config| config["mtp_num_hidden_layers"] = 0.into());
    let checkpoint = copy.open().unwrap();
    assert_eq!(checkpoint.verdict().head, Head::NotConfigured);
    says(&checkpoint.verdict().to_string(), &["mtp_num_hidden_layers 0", "mtp (15 tensors)"]);
    says(&message(checkpoint.require_mtp()), &["set mtp_num_hidden_layers to 1"]);
}

#[test]
fn neither_announced_nor_present_loads() {
    let copy = Copy::dense();
    copy.edit(drop_head)
        .config(|config| drop(config.as_object_mut().unwrap().remove("mtp_num_hidden_layers")));
    let checkpoint = copy.open().unwrap();
    assert_eq!(checkpoint.verdict().head, Head::None);
    says(&message(checkpoint.require_mtp()), &["config.json announces none"]);
}

#[test]
fn a_partial_head_is_an_error_unless_it_is_not_wanted() {
    let copy = Copy::dense();
    copy.edit(|tensors| {
        tensors.remove(FC);
        tensors.remove("mtp.norm.weight");
    });
    says(&copy.error(), &[FC, "[64, 128]", "1 more missing", "--draft 0"]);
    let checkpoint = open(&copy, MtpFrom::Nowhere).unwrap();
    assert_eq!(checkpoint.verdict().head, Head::Ignored);
    assert!(checkpoint.mtp().is_none());
}

#[test]
fn a_misshaped_head_is_named() {
    let copy = Copy::dense();
    copy.edit(|tensors| tensors.get_mut(FC).unwrap().shape = vec![128, 64]);
    says(&copy.error(), &[FC, "[128, 64]", "[64, 128]", "model.safetensors"]);
}

#[test]
fn a_second_layer_is_refused_by_number() {
    let copy = Copy::dense();
    copy.config(|config| config["mtp_num_hidden_layers"] = 2.into());
    says(&copy.error(), &["mtp_num_hidden_layers", "is 2", "config.json", "0"]);

    // Announced as one layer, but the files have two: half of the head would be dropped.
    let copy = Copy::dense();
    copy.edit(|tensors| {
        let extra = tensors["mtp.layers.0.input_layernorm.weight"].clone();
        tensors.insert("mtp.layers.1.input_layernorm.weight".into(), extra);
    });
    says(&copy.error(), &["mtp.layers.1.input_layernorm.weight", "no part"]);
}

#[test]
fn a_head_can_come_from_elsewhere() {
    let whole = asset("fixtures/tiny-dense");
    let wanted: Vec<f32> = Checkpoint::open(&whole).unwrap().mtp().unwrap().fc.to_vec().unwrap();
    let copy = Copy::dense();
    copy.edit(drop_head).config(|config| config["mtp_num_hidden_layers"] = 0.into());
    // From another checkpoint, and from a file of its own.
    let alone = tempfile::tempdir().unwrap();
    let file = alone.path().join("head.safetensors");
    let mut head = Copy::dense().tensors();
    head.retain(|name, _| name.starts_with("mtp."));
    write(&file, &head);
    for from in [whole, file.clone()] {
        let checkpoint = open(&copy, MtpFrom::Path(from)).unwrap();
        assert_eq!(checkpoint.config().mtp_layers, 1);
        assert_eq!(checkpoint.require_mtp().unwrap().fc.to_vec::<f32>().unwrap(), wanted);
    }
    head.remove(FC);
    write(&file, &head);
    says(&message(open(&copy, MtpFrom::Path(file))), &[FC, "head.safetensors", "missing"]);
    says(&message(open(&copy, MtpFrom::Path("nowhere".into()))), &["nowhere", "cannot be read"]);
}

#[test]
fn a_quantised_head_is_named() {
    let copy = Copy::dense();
    copy.edit(|tensors| {
        let tensor = tensors.get_mut(FC).unwrap();
        tensor.dtype = safetensors::Dtype::F8_E4M3;
        tensor.data.truncate(tensor.data.len() / 2);
    });
    says(&copy.error(), &[FC, "F8_E4M3", "BF16", "16-bit release"]);
}
