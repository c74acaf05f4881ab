//! Looks for blobs at paths in all trees that are reachable from some tips.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::io;

use super::object::{self, Id, Kind, Mode};
use super::reader::{BATCH, Object, Pipe, Reader};

/// Tags of tags of tags.
const DEEPEST_TAG: usize = 8;

/// What is looked for: where, as what, and the ids that will do.
#[derive(Debug, Clone)]
pub(super) struct Target<'a> {
    pub(super) path: Vec<&'a [u8]>,
    pub(super) mode: Mode,
    pub(super) ids: Vec<Id>,
}

/// The targets' paths as a tree; 0 is its root.
#[derive(Default)]
struct Node<'a> {
    children: HashMap<&'a [u8], usize>,
    targets: Vec<usize>,
}

pub(super) struct Walk<'a, P> {
    reader: Reader<P>,
    targets: &'a [Target<'a>],
    nodes: Vec<Node<'a>>,
    /// Per target.
    pub(super) found: Vec<bool>,
    left: usize,
    /// Trees and the places where they stood: what is unchanged is read once.
    trees: HashSet<(Id, usize)>,
    commits: HashSet<Id>,
    /// Commits that may still be read.
    budget: usize,
    /// Trees of commits, gathered so that they are asked for together.
    roots: Vec<(Id, usize)>,
}

impl<'a, P: Pipe> Walk<'a, P> {
    /// `distrusted` are commits and tags at which the way ends.
    pub(super) fn new(reader: Reader<P>, targets: &'a [Target<'a>], distrusted: &[Id], budget: usize) -> Self {
        let mut nodes = vec![Node::default()];
        for (index, target) in targets.iter().enumerate() {
            let mut at = 0;
            for name in &target.path {
                let next = nodes.len();
                at = *nodes[at].children.entry(name).or_insert(next);
                if at == next {
                    nodes.push(Node::default());
                }
            }
            nodes[at].targets.push(index);
        }
        Self {
            reader,
            targets,
            nodes,
            found: vec![false; targets.len()],
            left: targets.len(),
            trees: HashSet::new(),
            commits: distrusted.iter().copied().collect(),
            budget,
            roots: Vec::new(),
        }
    }

    pub(super) fn pipe(&mut self) -> &mut P {
        self.reader.pipe()
    }

    /// Looks at the tips' own trees, then at their ancestors', newest first. True when there is nothing left to see.
    pub(super) fn run(&mut self, tips: &[Id]) -> io::Result<bool> {
        let mut heap = BinaryHeap::new();
        let mut open: Vec<Id> = tips.to_vec();
        for _ in 0..DEEPEST_TAG {
            open = self.read_tips(&open, &mut heap)?;
        }
        while self.left > 0 && !heap.is_empty() {
            // A merge brings several; their dates decide who is next.
            let newest: Vec<(i64, Reverse<Id>, Vec<Id>)> = (0..BATCH).map_while(|_| heap.pop()).collect();
            let parents: Vec<Id> = newest.into_iter().flat_map(|(_, _, parents)| parents).collect();
            for some in parents.chunks(BATCH) {
                for (id, object) in self.read_new(some)? {
                    self.take_commit(id, &object, &mut heap);
                }
            }
            if self.roots.len() >= BATCH || heap.is_empty() {
                self.search()?;
            }
        }
        self.search()?;
        Ok(self.left == 0 || self.budget > 0)
    }

    /// Reads tips and looks at their trees; what tags name is returned.
    fn read_tips(&mut self, tips: &[Id], heap: &mut BinaryHeap<(i64, Reverse<Id>, Vec<Id>)>) -> io::Result<Vec<Id>> {
        let mut named = Vec::new();
        for some in tips.chunks(BATCH) {
            for (id, object) in self.read_new(some)? {
                match object.kind {
                    Kind::Tag => named.extend(object::tag(&object.content)),
                    // Read once more by the search: tags of trees are rare.
                    Kind::Tree => self.roots.push((id, 0)),
                    _ => self.take_commit(id, &object, heap),
                }
            }
            self.search()?;
            if self.left == 0 {
                return Ok(Vec::new());
            }
        }
        Ok(named)
    }

    /// The objects of those ids that were not read before.
    fn read_new(&mut self, ids: &[Id]) -> io::Result<Vec<(Id, Object)>> {
        let mut new: Vec<Id> = ids.iter().copied().filter(|id| self.commits.insert(*id)).collect();
        new.truncate(self.budget);
        self.budget -= new.len();
        let objects = self.reader.read(&new)?;
        Ok(new.into_iter().zip(objects).filter_map(|(id, object)| Some((id, object?))).collect())
    }

    fn take_commit(&mut self, id: Id, object: &Object, heap: &mut BinaryHeap<(i64, Reverse<Id>, Vec<Id>)>) {
        if object.kind == Kind::Commit
            && let Some(commit) = object::commit(&object.content)
        {
            self.roots.push((commit.tree, 0));
            heap.push((commit.time, Reverse(id), commit.parents));
        }
    }

    /// Looks through the gathered trees and through those below them that a target's path names.
    fn search(&mut self) -> io::Result<()> {
        let mut open = std::mem::take(&mut self.roots);
        while self.left > 0 && !open.is_empty() {
            let some = open.split_off(open.len().saturating_sub(BATCH));
            let some: Vec<_> = some.into_iter().filter(|at| self.trees.insert(*at)).collect();
            let ids: Vec<Id> = some.iter().map(|(id, _)| *id).collect();
            let objects = self.reader.read(&ids)?;
            for ((id, node), object) in some.into_iter().zip(objects) {
                let Some(object) = object.filter(|object| object.kind == Kind::Tree) else { continue };
                for entry in object::entries(&object.content, id.format()) {
                    let Some(&child) = self.nodes[node].children.get(entry.name) else { continue };
                    if entry.mode == Mode::Directory && !self.nodes[child].children.is_empty() {
                        open.push((entry.id, child));
                    }
                    for &index in &self.nodes[child].targets {
                        let target = &self.targets[index];
                        if entry.mode == target.mode && target.ids.contains(&entry.id) && !self.found[index] {
                            self.found[index] = true;
                            self.left -= 1;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
