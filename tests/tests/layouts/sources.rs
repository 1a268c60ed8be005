//! The interfaces as the sources declare them, against the page.

use crate::page::{Row, Table, axes, tables};
use std::{collections::BTreeMap, fs, path::Path};

const CRATES: [&str; 6] =
    ["kernels-core", "kernels-conv", "kernels-gdn", "kernels-attn", "kernels-spec", "kernels-dense"];
/// Structs with a table of their own, wherever a field has one of these types.
const LISTS: [&str; 8] = ["Rows", "RowsMut", "KvPool", "KvPoolMut", "Slots", "Sampling", "Stops", "Counters"];

/// Every public struct of borrowed operands: its fields, as rows.
fn declared() -> BTreeMap<String, Vec<Row>> {
    let mut all = BTreeMap::new();
    for krate in CRATES {
        let folder = kernels_testkit::fixture::root().join(krate).join("src");
        for entry in fs::read_dir(folder).expect("sources") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|e| e == "rs") {
                structs(&krate.replace('-', "_"), &path, &mut all);
            }
        }
    }
    all
}

fn structs(krate: &str, path: &Path, all: &mut BTreeMap<String, Vec<Row>>) {
    let text = fs::read_to_string(path).expect("a source file");
    for part in text.split("\npub struct ").skip(1) {
        let (head, rest) = part.split_once("{\n").unwrap_or((part, ""));
        let Some(name) = head.split_once("<'a, B: Backend").map(|(name, _)| name) else { continue };
        if ["Tensor", "TensorMut"].contains(&name) {
            continue;
        }
        let body = rest.split("\n}").next().expect("a struct ends");
        let mut doc = String::new();
        let mut rows = vec![];
        for line in body.lines().map(str::trim) {
            if let Some(text) = line.strip_prefix("///") {
                doc.push_str(text);
            } else if let Some((name, ty)) = line.strip_prefix("pub ").and_then(|l| l.split_once(": ")) {
                rows.push(field(name, ty.trim_end_matches(','), &std::mem::take(&mut doc)));
            }
        }
        all.insert(format!("{krate}::{name}"), rows);
    }
}

fn field(name: &str, ty: &str, doc: &str) -> Row {
    let (optional, inner) = match ty.strip_prefix("Option<") {
        Some(inner) => (true, inner.strip_suffix('>').expect("a bracket closes")),
        None => (false, ty),
    };
    let inner = inner.replace("PageTable<'a, B>", "Tensor<'a, B, i32, 2>");
    let (kind, arguments) = inner.split_once("<'a, B").unwrap_or_else(|| panic!("{name}: {ty}"));
    let shape =
        doc.trim().strip_prefix('`').and_then(|doc| doc.split('`').next()).filter(|s| s.starts_with('['));
    if LISTS.contains(&kind) {
        let out = ["RowsMut", "KvPoolMut", "Slots", "Counters"].contains(&kind);
        return Row { name: name.into(), out, optional, ty: kind.into(), shape: vec![], strides: "-".into() };
    }
    let out = match kind {
        "Tensor" => false,
        "TensorMut" => true,
        other => panic!("{name}: `{other}` is neither a tensor nor a list"),
    };
    let arguments: Vec<&str> = arguments.trim_matches([',', ' ', '>']).split(", ").collect();
    let [element, rank] = arguments[..] else { panic!("{name}: {ty}") };
    let shape = axes(shape.unwrap_or_else(|| panic!("{name}: its documentation begins with its shape")));
    assert_eq!(shape.len().to_string(), rank, "{name}: {ty}");
    let strides = match (shape.len(), out) {
        (1, _) => "-",
        (_, true) => "apart",
        (_, false) => "any",
    };
    Row { name: name.into(), out, optional, ty: element.into(), shape, strides: strides.into() }
}

/// Where the documentation of a field says a shape in other words than the page.
fn reworded(table: &str, row: &mut Row) {
    let shape = match (table, row.name.as_str()) {
        ("kernels_dense::LinearArgs", "weight") => "[weight_rows, k]",
        ("kernels_dense::ConcatNormArgs", "out") => "[rows, 2 * n]",
        // Taps are read as they lie in a checkpoint.
        ("kernels_conv::Args", "weight") => return row.strides = "packed".into(),
        _ => return,
    };
    row.shape = axes(shape);
}

#[test]
fn every_operand_is_on_the_page() {
    let mut declared = declared();
    assert!(declared.len() > 30, "the sources are read");
    for (name, rows) in &mut declared {
        rows.iter_mut().for_each(|row| reworded(name, row));
    }
    let rust = |name: &&String| name.contains("::") && !name.ends_with("::KvPool");
    let page = tables();
    let on_page: Vec<&String> = page.keys().filter(rust).collect();
    assert_eq!(on_page, declared.keys().collect::<Vec<_>>(), "interfaces on the page and in the sources");
    for (name, rows) in &declared {
        assert_eq!(&page[name].rows, rows, "{name}: the page, then the sources");
    }
}

/// A pointer of a parameter struct: its name, whether it is written, its C type, the shape of its comment.
type Pointer = (String, bool, String, Vec<String>);

/// The pointers of every parameter struct of a C header.
fn pointers(header: &str, all: &mut BTreeMap<String, Vec<Pointer>>) {
    let text = fs::read_to_string(kernels_testkit::fixture::root().join(header)).expect("a header");
    for part in text.split("typedef struct ").skip(1) {
        let (name, rest) = part.split_once(" {\n").expect("a struct begins");
        let body = rest.split("\n}").next().expect("a struct ends");
        let pointer = |line: &str| {
            let (declaration, comment) = line.split_once(';')?;
            let (ty, field) = declaration.trim().rsplit_once("* ")?;
            let shape = comment.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
            let shape = shape.map_or(vec![], |(inner, _)| axes(&format!("[{inner}]")));
            let (is_in, ty) = ty.strip_prefix("const ").map_or((false, ty), |ty| (true, ty));
            Some((field.to_owned(), !is_in, ty.trim_end_matches("_t").to_owned(), shape))
        };
        all.insert(name.to_owned(), body.lines().filter_map(pointer).collect());
    }
}

#[test]
fn every_pointer_of_the_headers_is_on_the_page() {
    let mut declared = BTreeMap::new();
    let headers =
        CRATES.iter().map(|krate| (krate, format!("{krate}/include/{}.h", krate.replace('-', "_"))));
    let abi = "kernels-core/include/lockstep/abi.h".to_owned();
    for header in headers.map(|(_, header)| header).chain([abi]) {
        if kernels_testkit::fixture::root().join(&header).exists() {
            pointers(&header, &mut declared);
        }
    }
    let page = tables();
    let c: BTreeMap<&String, &Table> = page.iter().filter(|(name, _)| name.starts_with("ls_")).collect();
    assert_eq!(c.keys().copied().collect::<Vec<_>>(), declared.keys().collect::<Vec<_>>());
    for (name, pointers) in &declared {
        let rows = &c[name].rows;
        assert_eq!(rows.len(), pointers.len(), "{name}");
        for (row, (field, out, ty, shape)) in rows.iter().zip(pointers) {
            assert_eq!((&row.name, row.out), (field, *out), "{name}");
            // A `void*` has its type and shape in the comment, or only on the page.
            let known = [("float", "f32"), ("int32", "i32"), ("uint32", "u32"), ("uint64", "u64")];
            if let Some((_, ours)) = known.iter().find(|(theirs, _)| theirs == ty) {
                assert_eq!(row.ty, *ours, "{name}.{field}");
            }
            assert!(shape.is_empty() || &row.shape == shape, "{name}.{field}: {:?}, {shape:?}", row.shape);
        }
    }
}
