//! Changes one key of the host's text and leaves the rest as it is.

use super::grammar::{Entry, File, Name};

/// The text of `host` with exactly these values for `key`.
pub(super) fn set(host: &File, key: &Name, values: &[Option<Vec<u8>>]) -> Vec<u8> {
    let old: Vec<&Entry> = host.entries.iter().filter(|entry| entry.name == *key).collect();
    // From the end, so that what stands before keeps its place.
    let mut text = host.text.clone();
    let kept = old.len().min(values.len());
    for entry in old[kept..].iter().rev() {
        remove(host, &mut text, entry);
    }
    let section = old.last().map(|entry| entry.section).or_else(|| {
        let same = |at: &usize| host.sections[*at].section == key.section && host.sections[*at].subsection == key.subsection;
        (0..host.sections.len()).rev().find(same)
    });
    // What is removed stands behind what is kept, and nothing is both removed and added.
    let added: Vec<u8> = values[kept..].iter().flat_map(|value| line(&key.key, value.as_deref())).collect();
    if !added.is_empty() {
        match section {
            Some(section) => insert(host, &mut text, section, &added),
            None => append(&mut text, key, &added),
        }
    }
    for (entry, value) in old[..kept].iter().zip(values).rev() {
        if entry.value != *value {
            // Behind a key without a value git takes no comment.
            let rest = if value.is_some() { comment(&host.text[entry.span.clone()]) } else { &[] };
            let new = [&assignment(&key.key, value.as_deref())[..], rest].concat();
            text.splice(entry.span.clone(), new);
        }
    }
    text
}

/// ` # comment` behind a value that stands on one line; what goes on over several lines loses it.
fn comment(span: &[u8]) -> &[u8] {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in span.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\n' => return &[],
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            b'#' | b';' if !quoted => {
                let blanks = span[..at].iter().rev().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
                return &span[at - blanks..];
            }
            _ => {}
        }
    }
    &[]
}

fn assignment(key: &str, value: Option<&[u8]>) -> Vec<u8> {
    let Some(value) = value else { return key.as_bytes().to_vec() };
    let mut text = format!("{key} = ").into_bytes();
    let quote = value.is_empty()
        || value.iter().any(|byte| matches!(byte, b';' | b'#' | b'\r' | b'\t'))
        || value.first() == Some(&b' ')
        || value.last() == Some(&b' ');
    text.extend(quote.then_some(b'"'));
    for byte in value {
        match byte {
            b'\n' => text.extend(b"\\n"),
            b'\t' => text.extend(b"\\t"),
            8 => text.extend(b"\\b"),
            b'"' | b'\\' => text.extend([b'\\', *byte]),
            _ => text.push(*byte),
        }
    }
    text.extend(quote.then_some(b'"'));
    text
}

fn line(key: &str, value: Option<&[u8]>) -> Vec<u8> {
    [b"\t", &assignment(key, value)[..], b"\n"].concat()
}

fn remove(host: &File, text: &mut Vec<u8>, entry: &Entry) {
    let mut span = entry.span.clone();
    let blanks = host.text[..span.start].iter().rev().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let first = span.start == blanks || host.text.get((span.start - blanks).wrapping_sub(1)) == Some(&b'\n');
    if first {
        span.start -= blanks;
        let rest = &host.text[span.end..];
        span.end += if rest.starts_with(b"\r\n") { 2 } else { usize::from(rest.starts_with(b"\n")) };
    }
    // A section that is left with nothing goes, too: branches and remotes come and go.
    let head = &host.sections[entry.section].span;
    let next = host.sections.get(entry.section + 1).map_or(host.text.len(), |next| next.span.start);
    let others = [&host.text[head.end..span.start], &host.text[span.end..next]];
    if first && others.iter().all(|part| part.iter().all(u8::is_ascii_whitespace)) {
        let blanks = host.text[..head.start].iter().rev().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        span.start = head.start - blanks;
    }
    text.drain(span);
}

/// Behind the last entry of a section, or its head.
fn insert(host: &File, text: &mut Vec<u8>, section: usize, lines: &[u8]) {
    let last = host.entries.iter().rev().find(|entry| entry.section == section).map(|entry| entry.span.end);
    let mut at = last.unwrap_or(host.sections[section].span.end);
    // A comment on the line stays with it.
    at += host.text[at..].iter().position(|byte| *byte == b'\n').unwrap_or(host.text.len() - at);
    // The next section may begin on the same line.
    let next = host.sections.get(section + 1).map_or(host.text.len(), |next| next.span.start);
    let (at, added) = match at < next {
        true => (at + 1, lines.to_vec()),
        false => (next, [b"\n", lines].concat()),
    };
    text.splice(at..at, added);
}

fn append(text: &mut Vec<u8>, key: &Name, lines: &[u8]) {
    if !text.is_empty() && !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    text.extend(format!("[{}", key.section).bytes());
    if let Some(subsection) = &key.subsection {
        text.extend(b" \"");
        for byte in subsection {
            text.extend(matches!(byte, b'"' | b'\\').then_some(b'\\'));
            text.push(*byte);
        }
        text.push(b'"');
    }
    text.extend(b"]\n");
    text.extend(lines);
}
