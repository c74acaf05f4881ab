//! Names inside: each permitted one has an address of its own, so that a connection to it tells which name was meant.
//!
//! Nothing is ever forwarded. A name that no rule permits does not exist inside, so a query carries nothing out.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use crate::event::Event;
use crate::host::{Host, Pattern, name};
use crate::policy::Ruleset;

/// Where the synthetic addresses are from (RFC 2544: never routed on the internet).
pub const SYNTHETIC: Block = Block { first: Ipv4Addr::new(198, 18, 0, 0), prefix: 15 };

/// The first addresses of a block are left to the interfaces of whoever makes the listeners.
const RESERVED: u32 = 256;

/// Seconds for which an answer may be kept. The address never changes; whether it leads anywhere may.
const TTL: u32 = 60;

/// IPv4 addresses in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The first.
    pub first: Ipv4Addr,
    /// How many leading bits all have in common.
    pub prefix: u8,
}

impl Block {
    fn size(self) -> u32 {
        1_u32.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(u32::MAX)
    }

    /// Is `address` one of them?
    pub fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits().wrapping_sub(self.first.to_bits()) < self.size()
    }
}

/// Names and their addresses. An address is never given to a second name: a program may keep it for as long as it lives.
#[derive(Debug)]
pub struct Names {
    block: Block,
    next: u32,
    most_below_wildcard: usize,
    by_name: HashMap<String, Ipv4Addr>,
    by_address: HashMap<Ipv4Addr, Host>,
    below: HashMap<String, usize>,
}

impl Names {
    /// No names yet. A wildcard rule gives an address to at most `most_below_wildcard` names.
    pub fn new(block: Block, most_below_wildcard: usize) -> Self {
        let (by_name, by_address, below) = Default::default();
        Self { block, next: RESERVED, most_below_wildcard, by_name, by_address, below }
    }

    /// The name behind a synthetic address.
    pub fn behind(&self, address: Ipv4Addr) -> Option<&Host> {
        self.by_address.get(&address)
    }

    /// The address of `name`, which `pattern` permits; whether it is a new one. Nothing when there are no more.
    fn address(&mut self, name: &str, pattern: &Pattern) -> Option<(Ipv4Addr, bool)> {
        if let Some(address) = self.by_name.get(name) {
            return Some((*address, false));
        }
        // The last one would be the block's broadcast address.
        if self.next >= self.block.size() - 1 {
            return None;
        }
        if let Pattern::Below(domain) = pattern {
            let count = self.below.entry(domain.clone()).or_default();
            if *count >= self.most_below_wildcard {
                return None;
            }
            *count += 1;
        }
        let address = Ipv4Addr::from_bits(self.block.first.to_bits() + self.next);
        self.next += 1;
        self.by_name.insert(name.to_owned(), address);
        self.by_address.insert(address, Host::Name(name.to_owned()));
        Some((address, true))
    }
}

/// What to send back, and what to record.
#[derive(Debug, Default)]
pub struct Answer {
    /// The message; `None` for what deserves no answer.
    pub message: Option<Vec<u8>>,
    /// What happened.
    pub event: Option<Event>,
}

impl Answer {
    fn of(message: &Message, event: Option<Event>) -> Self {
        Self { message: message.to_vec().ok(), event }
    }
}

/// Answers one query. Never panics, whatever the bytes are, and never answers an answer.
pub fn answer(query: &[u8], names: &mut Names, rules: &Ruleset) -> Answer {
    let Ok(query) = Message::from_vec(query) else { return malformed(query) };
    if query.metadata.message_type != MessageType::Query {
        return Answer::default();
    }
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.metadata.recursion_desired = query.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    if query.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(1232).set_version(0);
        reply.set_edns(edns);
    }
    if query.metadata.op_code != OpCode::Query {
        reply.metadata.response_code = ResponseCode::NotImp;
        return Answer::of(&reply, None);
    }
    let [question] = &query.queries[..] else {
        reply.metadata.response_code = ResponseCode::FormErr;
        return Answer::of(&reply, None);
    };
    reply.add_query(question.clone());
    if question.query_class() != DNSClass::IN {
        reply.metadata.response_code = ResponseCode::Refused;
        return Answer::of(&reply, None);
    }
    let event = resolve(question.name(), question.query_type(), names, rules, &mut reply);
    Answer::of(&reply, event)
}

fn resolve(asked: &Name, kind: RecordType, names: &mut Names, rules: &Ruleset, reply: &mut Message) -> Option<Event> {
    let text = asked.to_ascii().to_ascii_lowercase();
    let refused = || {
        // Reverse look-ups are made by programs on their own, about addresses; they mean no host.
        let reverse = text.ends_with(".in-addr.arpa.") || text.ends_with(".ip6.arpa.");
        (!reverse).then(|| Event::NameRefused { name: text.clone(), kind: kind.to_string() })
    };
    let permitted = name(&text).ok().and_then(|name| {
        let host = Host::Name(name);
        rules.permits_name(&host).map(|pattern| (host, pattern))
    });
    // RFC 6761, 6.3: these names are the machine itself, whoever is asked.
    let local = text == "localhost." || text.ends_with(".localhost.");
    let wants_address = matches!(kind, RecordType::A | RecordType::ANY);
    match permitted {
        _ if local => {
            if wants_address {
                reply.add_answer(Record::from_rdata(asked.clone(), TTL, RData::A(A(Ipv4Addr::LOCALHOST))));
            }
            None
        }
        // No data, AAAA, HTTPS and SVCB included: no second way that knows a name by another address or key.
        Some(_) if !wants_address => None,
        Some((host, pattern)) => match names.address(host.name().unwrap_or_default(), pattern) {
            Some((address, new)) => {
                reply.add_answer(Record::from_rdata(asked.clone(), TTL, RData::A(A(address))));
                let Host::Name(name) = host else { return None };
                new.then_some(Event::NameGiven { name, address })
            }
            None => {
                reply.metadata.response_code = ResponseCode::ServFail;
                Some(Event::LimitReached { limit: "names" })
            }
        },
        None => {
            reply.metadata.response_code = ResponseCode::NXDomain;
            refused()
        }
    }
}

/// An error for what cannot be read, if its header can be.
fn malformed(query: &[u8]) -> Answer {
    match query {
        // RFC 1035, 4.1.1: the identifier, then the bit that tells an answer.
        [high, low, flags, _, _, _, _, _, _, _, _, _, ..] if flags & 0x80 == 0 => {
            let id = u16::from_be_bytes([*high, *low]);
            Answer::of(&Message::error_msg(id, OpCode::Query, ResponseCode::FormErr), None)
        }
        _ => Answer::default(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
