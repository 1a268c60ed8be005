//! Reading fields out of a JSON object so that an error can name file, field and value.

use crate::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// A JSON object of a configuration file, and where it came from.
pub(super) struct Fields<'a> {
    path: &'a Path,
    /// The object's own name with a trailing dot; empty for the file itself.
    prefix: &'static str,
    map: Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The file's outermost object.
    pub(super) fn root(text: &str, path: &'a Path) -> Result<Self> {
        let broken = |what: String| Error::Malformed {
            path: path.to_owned(),
            what,
            remedy: "fetch the file again".into(),
        };
        match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(Self { path, prefix: "", map }),
            Ok(_) => Err(broken("is JSON but not an object".into())),
            Err(e) => Err(broken(format!("is not valid JSON: {e}"))),
        }
    }

    /// The object in field `name`, whose fields are called `prefix` + name in errors.
    pub(super) fn object(&self, name: &str, prefix: &'static str) -> Result<Option<Self>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self { path: self.path, prefix, map: map.clone() })),
            Some(_) => Err(self.refuse(name, "it must be an object", "fetch the release's own file")),
        }
    }

    /// A field's value; `null` counts as absent, as in every published file.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    /// An error about field `name`.
    pub(super) fn refuse(&self, name: &str, why: impl Into<String>, remedy: impl Into<String>) -> Error {
        let mut value = self.map.get(name).map_or("missing".into(), Value::to_string);
        if value.chars().count() > 100 {
            value = value.chars().take(100).chain("…".chars()).collect();
        }
        Error::Config {
            path: self.path.to_owned(),
            field: format!("{}{name}", self.prefix),
            value,
            why: why.into(),
            remedy: remedy.into(),
        }
    }

    /// A size in `1..=max`.
    pub(super) fn size(&self, name: &str, default: Option<usize>, max: usize) -> Result<usize> {
        let range = || format!("it must be a whole number from 1 to {max}");
        match (self.get(name), default) {
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.refuse(name, range(), "add it, as in the release's own config.json")),
            (Some(value), _) => match whole(value) {
                Some(n) if (1..=max as u64).contains(&n) => Ok(n as usize),
                _ => Err(self.refuse(name, range(), "correct it, or fetch the release's own config.json")),
            },
        }
    }

    /// A count in `0..=max`.
    pub(super) fn count(&self, name: &str, default: usize, max: usize) -> Result<usize> {
        match self.get(name).map(whole) {
            None => Ok(default),
            Some(Some(n)) if n <= max as u64 => Ok(n as usize),
            Some(_) => {
                let why = format!("it must be a whole number from 0 to {max}");
                Err(self.refuse(name, why, "correct it, or fetch the release's own config.json"))
            }
        }
    }

    /// A number for which `good` holds; `want` says what that means.
    pub(super) fn number(&self, name: &str, want: &str, good: impl Fn(f64) -> bool) -> Result<Option<f64>> {
        match self.get(name).map(Value::as_f64) {
            None => Ok(None),
            Some(Some(x)) if x.is_finite() && good(x) => Ok(Some(x)),
            Some(_) => Err(self.refuse(name, format!("it must be {want}"), "correct it")),
        }
    }

    /// A flag.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.get(name).map(Value::as_bool) {
            None => Ok(None),
            Some(Some(flag)) => Ok(Some(flag)),
            Some(None) => Err(self.refuse(name, "it must be true or false", "correct it")),
        }
    }

    /// A string.
    pub(super) fn text(&self, name: &str) -> Result<Option<&str>> {
        match self.get(name).map(Value::as_str) {
            None => Ok(None),
            Some(Some(text)) => Ok(Some(text)),
            Some(None) => Err(self.refuse(name, "it must be a string", "correct it")),
        }
    }

    /// Refuses a string field that is present and not among `known`.
    pub(super) fn only(&self, name: &str, known: &[&str]) -> Result<()> {
        match self.text(name)? {
            Some(text) if !known.contains(&text) => {
                let why = format!("only {} is implemented", known.join(" or "));
                Err(self.refuse(name, why, "use a checkpoint of the Qwen3.5 family"))
            }
            _ => Ok(()),
        }
    }

    /// Token ids below `vocab`: one number or a list of them.
    pub(super) fn tokens(&self, name: &str, vocab: usize) -> Result<Vec<u32>> {
        let list = match self.get(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        let id = |v: &Value| whole(v).filter(|&n| n < vocab as u64).and_then(|n| u32::try_from(n).ok());
        list.iter().map(id).collect::<Option<Vec<u32>>>().ok_or_else(|| {
            let why = format!("token ids are whole numbers below the vocabulary's {vocab}");
            self.refuse(name, why, "correct it; the file may belong to another model")
        })
    }
}

/// A whole number, also when it is written `4.0`.
fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let x = value.as_f64()?;
        (x.fract() == 0.0 && (0.0..9e15).contains(&x)).then_some(x as u64)
    })
}
