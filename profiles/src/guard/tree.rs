//! JSON and TOML as one kind of tree, and which keys of it differ from the baseline's.

use std::collections::BTreeMap;

use crate::pattern::fits;
use crate::rule::Keys;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Tree {
    /// Keys in the order of the file; JSON may have one twice.
    Map(Vec<(String, Tree)>),
    /// A list.
    List(Vec<Tree>),
    /// A string.
    Text(String),
    /// Anything else, as it is written.
    Other(String),
}

/// UTF-8 without a byte order mark and NUL: what every reader takes for the same text.
pub(super) fn plain(bytes: &[u8]) -> Result<&str, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8")?;
    match text.contains(['\0', '\u{feff}']) {
        true => Err("holds a byte order mark or NUL".into()),
        false => Ok(text),
    }
}

/// JSON with comments and trailing commas, as editors read it.
pub(super) fn json(bytes: &[u8]) -> Result<Tree, String> {
    parse_json(bytes, true)
}

/// JSON and nothing more, as package managers read it.
pub(super) fn strict_json(bytes: &[u8]) -> Result<Tree, String> {
    parse_json(bytes, false)
}

fn parse_json(bytes: &[u8], lenient: bool) -> Result<Tree, String> {
    let options = jsonc_parser::ParseOptions {
        allow_comments: lenient,
        allow_trailing_commas: lenient,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let parsed = jsonc_parser::parse_to_ast(plain(bytes)?, &Default::default(), &options);
    let parsed = parsed.map_err(|error| format!("is not JSON: {}", error.kind()))?;
    Ok(parsed.value.map_or(Tree::Map(Vec::new()), from_json))
}

fn from_json(value: jsonc_parser::ast::Value<'_>) -> Tree {
    use jsonc_parser::ast::Value;
    match value {
        Value::Object(object) => {
            let entries = object.properties.into_iter().map(|entry| (entry.name.into_string(), from_json(entry.value)));
            Tree::Map(entries.collect())
        }
        Value::Array(array) => Tree::List(array.elements.into_iter().map(from_json).collect()),
        Value::StringLit(text) => Tree::Text(text.value.into_owned()),
        Value::NumberLit(number) => Tree::Other(number.value.to_owned()),
        Value::BooleanLit(boolean) => Tree::Other(boolean.value.to_string()),
        Value::NullKeyword(_) => Tree::Other("null".into()),
    }
}

/// TOML.
pub(super) fn toml(bytes: &[u8]) -> Result<Tree, String> {
    let table: ::toml::Table = plain(bytes)?
        .parse()
        .map_err(|error: ::toml::de::Error| format!("is not TOML: {}", error.message().lines().next().unwrap_or_default()))?;
    Ok(from_toml(::toml::Value::Table(table)))
}

fn from_toml(value: ::toml::Value) -> Tree {
    use ::toml::Value;
    match value {
        Value::Table(table) => Tree::Map(table.into_iter().map(|(key, value)| (key, from_toml(value))).collect()),
        Value::Array(array) => Tree::List(array.into_iter().map(from_toml).collect()),
        Value::String(text) => Tree::Text(text),
        other => Tree::Other(other.to_string()),
    }
}

/// The keys that count, with their values in order: a key that stands twice is one with two values.
type Found<'t> = BTreeMap<String, Vec<&'t Tree>>;

/// Names of keys that count and differ from the baseline's, new, other or gone.
pub(super) fn changed(keys: &Keys, before: Option<&Tree>, now: &Tree) -> Vec<String> {
    let (mut old, mut new) = (Found::new(), Found::new());
    before.into_iter().for_each(|before| collect(keys, before, &mut Vec::new(), &mut old));
    collect(keys, now, &mut Vec::new(), &mut new);
    let differs = |key: &&String| old.get(*key) != new.get(*key);
    let mut names: Vec<String> = new.keys().chain(old.keys()).filter(differs).cloned().collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn collect<'t>(keys: &Keys, tree: &'t Tree, path: &mut Vec<&'t str>, found: &mut Found<'t>) {
    match tree {
        Tree::Map(entries) => {
            for (key, value) in entries {
                path.push(key);
                entry(keys, value, path, found);
                path.pop();
            }
        }
        // Where keys are refused at any depth, lists are looked into; where they are allowed from the top, a list is a value.
        Tree::List(items) if keys.allow.is_empty() => {
            for (number, item) in items.iter().enumerate() {
                // The number is part of no pattern, but it tells equal keys of two items apart.
                let mut inner = Found::new();
                collect(keys, item, path, &mut inner);
                for (key, values) in inner {
                    found.entry(format!("{key}#{number}")).or_default().extend(values);
                }
            }
        }
        // Something else where a map is expected.
        _ if path.is_empty() => found.entry("everything".into()).or_default().push(tree),
        _ => {}
    }
}

fn entry<'t>(keys: &Keys, value: &'t Tree, path: &mut Vec<&'t str>, found: &mut Found<'t>) {
    let counts = if keys.allow.is_empty() {
        keys.refuse.iter().any(|pattern| ends(pattern, path))
    } else {
        match keys.allow.iter().map(|pattern| starts(pattern, path)).max().unwrap_or(Fit::No) {
            Fit::All => return,
            Fit::Beginning if matches!(value, Tree::Map(_)) => return collect(keys, value, path, found),
            _ => true,
        }
    };
    match counts {
        true => found.entry(path.join("/")).or_default().push(value),
        false => collect(keys, value, path, found),
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    No,
    /// The pattern goes on below this key.
    Beginning,
    All,
}

/// Is the key at `path` what `pattern`, read from the top, is about?
fn starts(pattern: &str, path: &[&str]) -> Fit {
    let parts: Vec<&str> = pattern.split('/').collect();
    let fit = parts.iter().zip(path).all(|(part, key)| fits_key(part, key));
    match (fit, parts.len() <= path.len()) {
        (false, _) => Fit::No,
        (true, true) => Fit::All,
        (true, false) => Fit::Beginning,
    }
}

/// Is the key at `path` what `pattern`, read from the end, is about? In any case of letters.
fn ends(pattern: &str, path: &[&str]) -> bool {
    let parts: Vec<&str> = pattern.split('/').collect();
    let from = path.len().checked_sub(parts.len());
    from.is_some_and(|from| {
        parts.iter().zip(&path[from..]).all(|(part, key)| fits_key(&part.to_lowercase(), &key.to_lowercase()))
    })
}

/// A glob in which `/` is a character like any other: keys are no paths.
fn fits_key(part: &str, key: &str) -> bool {
    match key.contains('/') && part.contains('*') {
        true => fits(part, key.replace('/', "\u{1}").as_bytes()),
        false => fits(part, key.as_bytes()),
    }
}
