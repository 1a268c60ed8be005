//! docs/layouts.md as data.

use std::{collections::BTreeMap, fs};

/// A table of the page.
#[derive(Debug)]
pub(crate) struct Table {
    /// `kernels_conv::Args`, or a C struct.
    pub(crate) name: String,
    pub(crate) rows: Vec<Row>,
}

/// A row of it.
#[derive(Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) out: bool,
    pub(crate) optional: bool,
    pub(crate) ty: String,
    /// Empty for a list with a table of its own.
    pub(crate) shape: Vec<String>,
    pub(crate) strides: String,
}

/// All tables by the first name in their headings.
pub(crate) fn tables() -> BTreeMap<String, Table> {
    let text =
        fs::read_to_string(kernels_testkit::fixture::root().join("docs/layouts.md")).expect("the page");
    let mut tables = BTreeMap::new();
    for part in text.split("\n### ").skip(1) {
        let (heading, body) = part.split_once('\n').expect("a heading and more");
        let body = body.split("\n## ").next().expect("a part before the next chapter");
        let name = code(heading).expect("a heading names an interface");
        let rows = body.lines().filter(|line| line.starts_with("| `")).map(row).collect();
        tables.insert(name.clone(), Table { name, rows });
    }
    tables
}

/// The first text between backquotes.
fn code(text: &str) -> Option<String> {
    text.split('`').nth(1).map(str::to_owned)
}

fn row(line: &str) -> Row {
    let cells: Vec<&str> = line.trim_matches('|').splitn(6, '|').map(str::trim).collect();
    let [name, usage, ty, shape, strides, _] = cells[..] else { panic!("six cells: {line}") };
    let plain = |cell: &str| code(cell).unwrap_or_else(|| panic!("a name in `: {line}"));
    let use_ = usage.trim_end_matches('?');
    assert!(["in", "out", "in, out"].contains(&use_), "{line}");
    Row {
        name: plain(name),
        out: use_ == "out",
        optional: usage.ends_with('?'),
        ty: plain(ty),
        shape: if shape == "-" { vec![] } else { axes(&plain(shape)) },
        strides: strides.to_owned(),
    }
}

/// `[rows, 2 * n]` as its axes.
pub(crate) fn axes(shape: &str) -> Vec<String> {
    let inner = shape.strip_prefix('[').and_then(|s| s.strip_suffix(']'));
    let inner = inner.unwrap_or_else(|| panic!("a shape in brackets: {shape}"));
    inner.split(',').map(|axis| axis.trim().to_owned()).collect()
}

/// The value of `2 * intermediate` or `slots + 1`.
pub(crate) fn value(axis: &str, sizes: &[(&str, usize)]) -> usize {
    let one = |word: &str| {
        let word = word.trim();
        let known = sizes.iter().find(|(name, _)| *name == word).map(|(_, size)| *size);
        known.or_else(|| word.parse().ok()).unwrap_or_else(|| panic!("no size is called `{word}`"))
    };
    match (axis.split_once('+'), axis.split_once('*')) {
        (Some((a, b)), _) => one(a) + one(b),
        (_, Some((a, b))) => one(a) * one(b),
        _ => one(axis),
    }
}
