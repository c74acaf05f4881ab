use hermes_profiles::{Origin, Route};
use hickory_proto::op::Query;
use proptest::prelude::*;

use super::*;

fn rules(hosts: &[&str]) -> Ruleset {
    let routes: Vec<_> = hosts.iter().map(|host| Route::new(*host, [443], Origin::Flag("--allow-host".into()))).collect();
    Ruleset::new(&routes, None).unwrap()
}

fn ask(names: &mut Names, rules: &Ruleset, text: &str, kind: RecordType) -> (Message, Option<Event>) {
    let mut query = Message::new(7, MessageType::Query, OpCode::Query);
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(Name::from_ascii(text).unwrap(), kind));
    let answer = answer(&query.to_vec().unwrap(), names, rules);
    (Message::from_vec(&answer.message.unwrap()).unwrap(), answer.event)
}

fn address(message: &Message) -> Option<Ipv4Addr> {
    message.answers.iter().find_map(|record| match &record.data {
        RData::A(address) => Some(address.0),
        _ => None,
    })
}

#[test]
fn permitted_names_have_an_address_of_their_own() {
    let (mut names, rules) = (Names::new(SYNTHETIC, 10), rules(&["api.example.test", "*.cdn.test"]));
    let (reply, event) = ask(&mut names, &rules, "API.Example.test.", RecordType::A);
    let first = address(&reply).unwrap();
    assert_eq!(first, Ipv4Addr::new(198, 18, 1, 0));
    assert_eq!(event, Some(Event::NameGiven { name: "api.example.test".into(), address: first }));
    assert_eq!(reply.answers[0].name.to_ascii(), "API.Example.test.");
    let (again, event) = ask(&mut names, &rules, "api.example.test.", RecordType::A);
    assert_eq!((address(&again), event), (Some(first), None));
    let other = address(&ask(&mut names, &rules, "a.b.cdn.test.", RecordType::A).0).unwrap();
    assert_ne!(first, other);
    assert_eq!(names.behind(other), Some(&Host::Name("a.b.cdn.test".into())));
}

#[test]
fn everything_else_does_not_exist() {
    let (mut names, rules) = (Names::new(SYNTHETIC, 10), rules(&["api.example.test", "*.cdn.test"]));
    for text in ["example.test.", "cdn.test.", "evil.test.", "secret-data.evil.test.", "api.example.test.evil.test.", "."] {
        let (reply, event) = ask(&mut names, &rules, text, RecordType::A);
        assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain, "{text}");
        assert!(matches!(event, Some(Event::NameRefused { .. })), "{text}");
    }
    for kind in [RecordType::AAAA, RecordType::HTTPS, RecordType::SVCB, RecordType::TXT, RecordType::MX] {
        let (reply, event) = ask(&mut names, &rules, "api.example.test.", kind);
        assert_eq!((reply.metadata.response_code, reply.answers.len(), event), (ResponseCode::NoError, 0, None));
    }
    assert_eq!(ask(&mut names, &rules, "1.2.18.198.in-addr.arpa.", RecordType::PTR).1, None);
    assert_eq!(address(&ask(&mut names, &rules, "localhost.", RecordType::A).0), Some(Ipv4Addr::LOCALHOST));
}

#[test]
fn a_wildcard_cannot_use_up_all_addresses() {
    let (mut names, rules) = (Names::new(SYNTHETIC, 3), rules(&["*.cdn.test", "api.example.test"]));
    let given =
        (0..9).filter(|n| address(&ask(&mut names, &rules, &format!("{n}.cdn.test."), RecordType::A).0).is_some()).count();
    assert_eq!(given, 3);
    assert!(address(&ask(&mut names, &rules, "0.cdn.test.", RecordType::A).0).is_some());
    assert!(address(&ask(&mut names, &rules, "api.example.test.", RecordType::A).0).is_some());
    let mut small = Names::new(Block { first: Ipv4Addr::new(198, 18, 0, 0), prefix: 23 }, 1_000);
    let given =
        (0..400).filter(|n| address(&ask(&mut small, &rules, &format!("{n}.cdn.test."), RecordType::A).0).is_some()).count();
    assert_eq!(given, 255);
}

#[test]
fn a_removed_name_keeps_its_address() {
    let mut names = Names::new(SYNTHETIC, 10);
    let first = address(&ask(&mut names, &rules(&["a.test"]), "a.test.", RecordType::A).0);
    assert_eq!(ask(&mut names, &rules(&["b.test"]), "a.test.", RecordType::A).0.metadata.response_code, ResponseCode::NXDomain);
    assert_ne!(address(&ask(&mut names, &rules(&["b.test"]), "b.test.", RecordType::A).0), first);
    assert_eq!(address(&ask(&mut names, &rules(&["a.test"]), "a.test.", RecordType::A).0), first);
}

#[test]
fn strange_messages() {
    let (mut names, rules) = (Names::new(SYNTHETIC, 10), rules(&["a.test"]));
    let mut response = Message::response(1, OpCode::Query);
    response.add_query(Query::query(Name::from_ascii("a.test.").unwrap(), RecordType::A));
    assert!(answer(&response.to_vec().unwrap(), &mut names, &rules).message.is_none());
    let code = |answer: Answer| Message::from_vec(&answer.message.unwrap()).unwrap().metadata.response_code;
    let mut update = Message::new(1, MessageType::Query, OpCode::Update);
    update.add_query(Query::query(Name::from_ascii("a.test.").unwrap(), RecordType::SOA));
    assert_eq!(code(answer(&update.to_vec().unwrap(), &mut names, &rules)), ResponseCode::NotImp);
    let mut two = Message::new(1, MessageType::Query, OpCode::Query);
    for text in ["a.test.", "b.test."] {
        two.add_query(Query::query(Name::from_ascii(text).unwrap(), RecordType::A));
    }
    assert_eq!(code(answer(&two.to_vec().unwrap(), &mut names, &rules)), ResponseCode::FormErr);
    // A compression pointer to itself.
    let looped = [0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1];
    assert_eq!(code(answer(&looped, &mut names, &rules)), ResponseCode::FormErr);
    // Label bytes that are no name's: a NUL, and a dot in a label.
    for label in [&b"\x06a\0test"[..], b"\x06a.test"] {
        let bytes = [&[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], label, &[0, 0, 1, 0, 1]].concat();
        assert_eq!(code(answer(&bytes, &mut names, &rules)), ResponseCode::NXDomain);
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = answer(&bytes, &mut Names::new(SYNTHETIC, 10), &rules(&["a.test"]));
    }

    /// A good message with a few bytes changed reaches further in than noise does.
    #[test]
    fn damaged_messages(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in any::<prop::sample::Index>()) {
        let mut query = Message::new(7, MessageType::Query, OpCode::Query);
        query.add_query(Query::query(Name::from_ascii("a.b.c.test.").unwrap(), RecordType::HTTPS));
        let mut edns = Edns::new();
        edns.set_max_payload(4096);
        query.set_edns(edns);
        let mut bytes = query.to_vec().unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        let _ = answer(&bytes, &mut Names::new(SYNTHETIC, 10), &rules(&["*.test"]));
    }
}
