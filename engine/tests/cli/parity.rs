//! `lockstep parity`: its table, its exit code, its refusals. What the table says is tested in `tests/`.

use super::{lockstep, refused_with, text, without_head};

#[test]
fn prints_a_row_for_each_configuration() {
    // Without a head only scripts draft, which is a shorter table.
    let headless = without_head();
    let output = lockstep(&["parity", "--quick", "--model", headless.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert_eq!(table.matches("identical  ").count(), 7, "{table}");
    for words in ["all right by design", "every accept length, 0 to 2", "every row is identical"] {
        assert!(table.contains(words), "`{words}` is not in: {table}");
    }
    assert!(!table.contains("mtp"), "{table}");
    assert!(text(&output.stderr).contains("rows that draft with it are left out"));
}

#[test]
fn refuses_what_it_has_not() {
    refused_with(&["parity", "--words", "201"], &["--words is 201", "there are 200 word problems"]);
    refused_with(&["parity", "--model", "/nowhere"], &["/nowhere", "config.json"]);
    let both = lockstep(&["parity", "--quick", "--full"]);
    assert_eq!(both.status.code(), Some(2));
}
