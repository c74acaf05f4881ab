//! Turns `builtin/*.toml` into bytes that need no parsing at run time. A mistake in a built-in profile or guard rule fails
//! the build.

#![allow(dead_code, unused_imports, unreachable_pub, missing_docs)]

#[path = "src/error.rs"]
mod error;
#[path = "src/layer.rs"]
mod layer;
#[path = "src/ospath.rs"]
mod ospath;
#[path = "src/parse.rs"]
mod parse;
#[path = "src/paths.rs"]
mod paths;
#[path = "src/pattern.rs"]
mod pattern;
#[path = "src/policy.rs"]
mod policy;
#[path = "src/request.rs"]
mod request;
#[path = "src/route.rs"]
mod route;
#[path = "src/rule.rs"]
mod rule;
#[path = "src/selector.rs"]
mod selector;
#[path = "src/values.rs"]
mod values;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::{env, fs};

use pattern::{Base, Index, Pattern};
use rule::{Action, Rule};
use serde::Deserialize;

type Failure = Box<dyn std::error::Error>;

const RULES: &str = "builtin/guard.toml";

/// What `crate::names` is in the library.
mod names {
    pub(crate) fn rules() -> &'static [&'static str] {
        &super::IDS
    }
}

static IDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let rules = rules().unwrap_or_default();
    rules.into_iter().map(|rule| &*String::leak(rule.id.into_owned())).collect()
});

fn main() -> Result<(), Failure> {
    println!("cargo::rerun-if-changed=builtin");
    println!("cargo::rerun-if-changed=src");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    guard(&out)?;
    let mut files: Vec<PathBuf> = fs::read_dir("builtin")?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml") && path != Path::new(RULES));
    files.sort_by(|a, b| a.file_stem().cmp(&b.file_stem()));
    let mut table = String::from("static PROFILES: &[Builtin] = &[\n");
    for file in files {
        let name = file.file_stem().and_then(|stem| stem.to_str()).ok_or("a profile needs a plain name")?;
        let layer = parse::layer(&layer::Place::File(Path::new("profiles").join(&file)), &fs::read(&file)?)?;
        fs::write(out.join(format!("{name}.layer")), postcard::to_stdvec(&layer)?)?;
        writeln!(
            table,
            "Builtin {{ name: {name:?}, description: {:?}, \
             text: include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/builtin/{name}.toml\")), \
             layer: include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}.layer\")) }},",
            layer.description.as_deref().ok_or("a built-in profile needs a description")?,
        )?;
    }
    table.push_str("];\n");
    fs::write(out.join("builtin.rs"), table)?;
    Ok(())
}

fn rules() -> Result<Vec<Rule>, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        rule: Vec<toml::Table>,
    }
    let file: File = toml::from_str(&fs::read_to_string(RULES)?)?;
    let rule = |mut table: toml::Table| -> Result<Rule, Failure> {
        let id = table.get("id").map(ToString::to_string).unwrap_or_default();
        // What the tests try the rule with.
        for key in ["example", "unlike"] {
            table.remove(key);
        }
        table.try_into().map_err(|error: toml::de::Error| format!("{RULES}: {id}: {error}").into())
    };
    file.rule.into_iter().map(rule).collect()
}

/// The rules as bytes, and the tables that find them as code.
fn guard(out: &Path) -> Result<(), Failure> {
    let rules = rules()?;
    let (mut tree, mut git) = (Vec::new(), Vec::new());
    for (number, rule) in rules.iter().enumerate() {
        if rules[..number].iter().any(|other| other.id == rule.id) {
            return Err(format!("{RULES}: two rules are called {}", rule.id).into());
        }
        for text in &rule.files {
            for pattern in
                pattern::parse(text, number.try_into()?).map_err(|why| format!("{RULES}: {text:?}: {why}", text = text.0))?
            {
                if pattern.base == Base::GitDir { &mut git } else { &mut tree }.push(pattern);
            }
        }
    }
    let outside = |rule: &Rule| rule.action == Action::Report && !rule.packages;
    let outside: Vec<bool> = rules.iter().map(outside).collect();
    let mut code = String::from("static BYTES: &[&[u8]] = &[\n");
    let mut stamp = std::hash::DefaultHasher::new();
    for rule in &rules {
        let bytes = postcard::to_stdvec(rule)?;
        std::hash::Hasher::write(&mut stamp, &bytes);
        writeln!(code, "&{bytes:?},")?;
    }
    code.push_str("];\n");
    writeln!(code, "static OUTSIDE: [bool; {}] = {outside:?};", outside.len())?;
    index(&mut code, "TREE", &Index::new(tree))?;
    index(&mut code, "GIT", &Index::new(git))?;
    code.push_str(&format!("const RULE_STAMP: u64 = {:#x};\n", std::hash::Hasher::finish(&stamp)));
    fs::write(out.join("guard.rs"), code)?;
    let ids: Vec<&str> = rules.iter().map(|rule| &*rule.id).collect();
    fs::write(out.join("names.rs"), format!("static RULES: &[&str] = &{ids:?};\n"))?;
    Ok(())
}

fn index(code: &mut String, name: &str, index: &Index<'_>) -> Result<(), Failure> {
    let Index { patterns, names, endings, rest, first } = index;
    writeln!(code, "static {name}: Index<'static> = Index {{ patterns: Cow::Borrowed(&[")?;
    for Pattern { base, parents, name, below, rule } in patterns.iter() {
        let text = format!("parents: Cow::Borrowed({parents:?}), name: Cow::Borrowed({name:?}), below: {below}, rule: {rule}");
        writeln!(code, "Pattern {{ base: Base::{base:?}, {text} }},")?;
    }
    writeln!(
        code,
        "]), names: Cow::Borrowed(&{names:?}), endings: Cow::Borrowed(&{endings:?}), rest: {rest}, first: {first:?} }};"
    )?;
    Ok(())
}
