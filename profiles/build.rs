//! Turns `builtin/*.toml` into bytes that need no parsing at run time. A mistake in a built-in profile fails the build.

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
#[path = "src/policy.rs"]
mod policy;
#[path = "src/request.rs"]
mod request;
#[path = "src/values.rs"]
mod values;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=builtin");
    println!("cargo::rerun-if-changed=src");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut files: Vec<PathBuf> = fs::read_dir("builtin")?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
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
