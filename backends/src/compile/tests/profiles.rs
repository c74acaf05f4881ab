//! What the profiles that ship come to.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hermes_profiles::builtin;
use serde_json::Value;

use super::hosts;
use super::world::{builtin, machine};
use crate::compile::{Choices, compile};
use crate::host::Host;
use crate::plan::{Lost, Plan, Tier};

fn plan(profile: &str, host: &Host) -> Plan {
    let policy = builtin(profile);
    compile(&policy, host, &machine().survey(&policy), Choices::default()).unwrap()
}

/// JSON with one line for each member, and for each element of a list.
fn lines(plan: &Plan) -> String {
    let Value::Object(members) = serde_json::to_value(plan).unwrap() else { panic!() };
    let mut text = String::new();
    for (name, value) in members {
        match value {
            Value::Array(elements) if !elements.is_empty() => {
                _ = writeln!(text, "{name}:");
                elements.iter().for_each(|element| _ = writeln!(text, "  {element}"));
            }
            Value::Object(mut members) if name == "landlock" => {
                let Some(Value::Array(paths)) = members.remove("paths") else { panic!() };
                _ = writeln!(text, "{name}: {}", Value::Object(members));
                for mut path in paths {
                    path.as_object_mut().unwrap().retain(|_, value| !value.is_null());
                    _ = writeln!(text, "  {path}");
                }
            }
            value => _ = writeln!(text, "{name}: {value}"),
        }
    }
    text
}

#[test]
fn the_plan_of_every_profile() {
    for profile in builtin::all() {
        insta::with_settings!({ omit_expression => true }, {
            insta::assert_snapshot!(format!("plan_{}", profile.name), lines(&plan(profile.name, &hosts::baseline())));
        });
    }
}

fn names(losses: &[Lost]) -> String {
    let names: Vec<String> =
        losses.iter().map(|lost| format!("{}{}", lost.guarantee, if lost.required { "!" } else { "" })).collect();
    if names.is_empty() { "nothing".into() } else { names.join(" ") }
}

/// How it comes out, but for the Landlock ABI.
fn outcome(plan: &Plan) -> String {
    let tier = if plan.tier == Tier::Namespaces { "namespaces" } else { "landlock" };
    let starts = if plan.fatal().next().is_some() { ", refused" } else { "" };
    format!("  {tier}{starts}\n    lost      {}\n    weakened  {}\n", names(&plan.lost), names(&plan.weakened))
}

/// The Landlock ABI that is used.
fn abi(plan: &Plan) -> u32 {
    plan.landlock.as_ref().map_or(0, |landlock| landlock.abi)
}

/// Every outcome with the hosts that have it.
fn outcomes(profile: &str) -> String {
    let mut table: Vec<(String, String)> = Vec::new();
    let mut add = |host: String, plan: &Plan| {
        let outcome = outcome(plan);
        match table.iter_mut().find(|(known, _)| *known == outcome) {
            Some((_, hosts)) => *hosts += &host,
            None => table.push((outcome, host)),
        }
    };
    for (family, host) in hosts::families() {
        let plans: Vec<Plan> =
            (0..=hosts::NEWEST_ABI).map(|landlock_abi| plan(profile, &Host { landlock_abi, ..host.clone() })).collect();
        let mut first = 0;
        for (last, plan) in plans.iter().enumerate() {
            if plans.get(last + 1).is_none_or(|next| outcome(next) != outcome(plan)) {
                let used = format!("{}-{}", abi(&plans[first]), abi(plan));
                add(format!("    on        {family}, Landlock ABI {first}-{last} (used: {used})\n"), plan);
                first = last + 1;
            }
        }
    }
    for (name, host) in hosts::single() {
        let plan = plan(profile, &host);
        add(format!("    on        {name} (used: {})\n", abi(&plan)), &plan);
    }
    table.into_iter().map(|(outcome, hosts)| outcome + &hosts).collect()
}

#[test]
fn losses_on_every_host() {
    let mut alike: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for profile in builtin::all() {
        alike.entry(outcomes(profile.name)).or_default().push(profile.name);
    }
    let mut tables: Vec<_> = alike.into_iter().map(|(text, profiles)| format!("{}\n{text}", profiles.join(", "))).collect();
    tables.sort();
    insta::with_settings!({ omit_expression => true, description => "! marks a guarantee that the policy insists on" }, {
        insta::assert_snapshot!("losses", tables.join("\n"));
    });
}
