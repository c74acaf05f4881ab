//! The guard rules that ship, and what a policy makes of them.
#![allow(clippy::unwrap_used)]

mod support;

use std::ffi::OsStr;
use std::path::Path;

use hermes_profiles::guard::{Action, Check, Guard, Selector, Trigger, builtin};
use hermes_profiles::{GuardRules, Request};
use support::*;

const TREE: &str = "/home/user/project";

/// The table as it is written, with the paths that the rules are to be tried with.
fn table() -> Vec<toml::Table> {
    let text = include_str!("../builtin/guard.toml");
    let file: toml::Table = text.parse().unwrap();
    file["rule"].as_array().unwrap().iter().map(|rule| rule.as_table().unwrap().clone()).collect()
}

fn id_for(guard: &Guard<'_>, path: &str) -> Option<String> {
    guard.rule_for(Path::new(path)).map(|rule| rule.id.to_string())
}

#[test]
fn every_rule_finds_its_example_and_not_what_only_looks_like_it() {
    let rules = GuardRules::default();
    let guard = Guard::new(&rules, Path::new(TREE));
    let rows = table();
    assert_eq!(rows.len(), builtin().len());
    for (row, rule) in rows.iter().zip(builtin()) {
        let text = |key: &str| row.get(key).and_then(toml::Value::as_str);
        assert_eq!(text("id"), Some(&*rule.id));
        if rule.files.is_empty() {
            assert!(guard.by_id(&rule.id).is_some() && text("example").is_none(), "{}", rule.id);
            continue;
        }
        let (example, unlike) = (text("example").unwrap(), text("unlike").unwrap());
        assert_eq!(id_for(&guard, example).as_deref(), Some(&*rule.id), "{example}");
        assert_ne!(id_for(&guard, unlike).as_deref(), Some(&*rule.id), "{unlike}");
    }
}
