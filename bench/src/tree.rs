//! Work as a tree of requests: what benchmarks measure and the cluster model predicts, whoever carries it out.
//!
//! The same tree is run in two forms: as one multi-hop call, whose servers send the requests below theirs themselves, or
//! as plain calls, each made by the client as soon as the answer above it is there.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Requests and which of them needs which: parents stand before their children, generation by generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    nodes: Vec<Node>,
    roots: usize,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The request whose result it needs; none: the client knows enough.
    pub parent: Option<usize>,
    /// The requests that need its result.
    pub children: Vec<usize>,
    /// Whether the client is told something by it, too. It always is by one that has no children.
    pub answers: bool,
}

/// How a tree is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Form {
    /// One call of which servers pass the parts on.
    Multihop,
    /// A call of the client for each request.
    Calls,
}

/// The trees that the DPC thesis measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Shape {
    /// Servers in sequence (figure 6.1).
    Chain {
        /// How many.
        servers: usize,
    },
    /// A server, then several in parallel (figure 6.2).
    Fan {
        /// How many, the first one not included.
        servers: usize,
    },
    /// The path of a ray: each hit asks for its shadow and, beside that, for the next hit (figure 6.3).
    Ray {
        /// How many hits.
        bounces: usize,
    },
    /// A query of the LDBC social network benchmark (table 6.2).
    Query(Query),
}

/// The short reads of the LDBC social network benchmark, with the inputs that table 6.2 of the thesis assumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Query {
    /// A person's profile.
    Is1,
    /// A person's ten latest messages, and the posts that began their threads.
    Is2,
    /// A person's friends, at ten servers.
    Is3,
    /// A message.
    Is4,
    /// A message's author.
    Is5,
    /// The forum of a post.
    Is6a,
    /// The forum of a comment.
    Is6b,
    /// Ten replies to a message.
    Is7,
}

impl Query {
    /// All of them, in order.
    pub const ALL: [Self; 8] = [
        Self::Is1,
        Self::Is2,
        Self::Is3,
        Self::Is4,
        Self::Is5,
        Self::Is6a,
        Self::Is6b,
        Self::Is7,
    ];

    fn tree(self) -> Tree {
        const FAN: usize = 10;
        let mut tree = Tree::default();
        match self {
            // The person, and where he lives.
            Self::Is1 => {
                tree.root();
                tree.root();
            }
            // Of each message: it itself answers, while what it replies to, that post and the post's author follow.
            Self::Is2 => {
                let person = tree.root();
                let links = tree.below(person, 2 * FAN).split_off(FAN);
                let posts = tree.below_each(&links);
                tree.below_each(&posts);
            }
            // Since when they are friends, and who they are.
            Self::Is3 => {
                let person = tree.root();
                tree.below(person, FAN);
                tree.nodes[person].answers = true;
            }
            Self::Is4 => {
                tree.root();
            }
            Self::Is5 => tree.chain(2),
            // The forum answers, while its moderator is asked.
            Self::Is6a => tree.forum(1),
            Self::Is6b => tree.forum(2),
            // Each comment answers, while its author is asked; the friends of the message's author do so beside them.
            Self::Is7 => {
                let (replies, author) = (tree.root(), tree.root());
                let writers = tree.below(replies, 2 * FAN).split_off(FAN);
                tree.below(author, 1);
                tree.below_each(&writers);
            }
        }
        tree
    }
}

impl Shape {
    /// Its tree.
    pub fn tree(self) -> Tree {
        let mut tree = Tree::default();
        match self {
            Self::Chain { servers } => tree.chain(servers),
            Self::Fan { servers } => {
                let first = tree.root();
                tree.below(first, servers);
            }
            Self::Ray { bounces } => {
                let mut hit = (bounces > 0).then(|| tree.root());
                for bounce in 1..=bounces {
                    let Some(above) = hit else { break };
                    // As in the thesis, the shadow is asked for first.
                    let below = tree.below(above, if bounce < bounces { 2 } else { 1 });
                    hit = below.get(1).copied();
                }
            }
            Self::Query(query) => tree = query.tree(),
        }
        tree
    }

    /// The benchmark's parameter: servers, bounces, or hops.
    pub fn n(self) -> usize {
        match self {
            Self::Chain { servers } | Self::Fan { servers } => servers,
            Self::Ray { bounces } => bounces,
            Self::Query(query) => query.tree().hops(),
        }
    }

    /// The name of its benchmark in result rows.
    pub fn bench(self) -> &'static str {
        match self {
            Self::Chain { .. } => "hops",
            Self::Fan { .. } => "fanout",
            Self::Ray { .. } => "rays",
            Self::Query(query) => match query {
                Query::Is1 => "is1",
                Query::Is2 => "is2",
                Query::Is3 => "is3",
                Query::Is4 => "is4",
                Query::Is5 => "is5",
                Query::Is6a => "is6a",
                Query::Is6b => "is6b",
                Query::Is7 => "is7",
            },
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Query(_) => formatter.write_str(self.bench()),
            _ => write!(formatter, "{} n={}", self.bench(), self.n()),
        }
    }
}

impl Tree {
    /// The requests, parents before children.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The requests that the client sends in a multi-hop call.
    pub fn roots(&self) -> impl Iterator<Item = usize> {
        let root = |(index, node): (usize, &Node)| node.parent.is_none().then_some(index);
        self.nodes.iter().enumerate().filter_map(root)
    }

    /// How many servers must be visited one after the other.
    pub fn hops(&self) -> usize {
        self.levels().last().map_or(0, |level| level + 1)
    }

    /// How many requests lead to each; in the order of the requests.
    pub fn levels(&self) -> impl DoubleEndedIterator<Item = usize> {
        let mut levels: Vec<usize> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            levels.push(node.parent.map_or(0, |parent| levels[parent] + 1));
        }
        levels.into_iter()
    }

    /// Requests that answer the client of a multi-hop call.
    pub fn answers(&self) -> usize {
        self.nodes.iter().filter(|node| node.answers).count()
    }

    /// The messages that it takes if each is sent once and nothing else is (table 6.3).
    pub fn messages(&self, form: Form) -> usize {
        match form {
            Form::Multihop => self.nodes.len() + self.answers(),
            Form::Calls => 2 * self.nodes.len(),
        }
    }

    /// How many of [`Tree::messages`] the client sends or receives.
    pub fn client_messages(&self, form: Form) -> usize {
        match form {
            Form::Multihop => self.roots + self.answers(),
            Form::Calls => self.messages(form),
        }
    }

    /// How many of [`Tree::messages`] follow one another at least.
    pub fn depth(&self, form: Form) -> usize {
        match (form, self.hops()) {
            (_, 0) => 0,
            (Form::Multihop, hops) => hops + 1,
            (Form::Calls, hops) => 2 * hops,
        }
    }

    /// Another request of the client. All of them are added before anything below them.
    fn root(&mut self) -> usize {
        self.roots += 1;
        self.add(None)
    }

    fn below(&mut self, parent: usize, count: usize) -> Vec<usize> {
        (0..count).map(|_| self.add(Some(parent))).collect()
    }

    /// One request below each of these.
    fn below_each(&mut self, parents: &[usize]) -> Vec<usize> {
        let below = |parent: &usize| self.add(Some(*parent));
        parents.iter().map(below).collect()
    }

    fn chain(&mut self, servers: usize) {
        let mut last = (servers > 0).then(|| self.root());
        for _ in 1..servers {
            last = last.map(|last| self.add(Some(last)));
        }
    }

    /// So many requests lead to a forum, which answers; its moderator does so beside it.
    fn forum(&mut self, above: usize) {
        self.chain(above);
        let moderator = self.below(above - 1, 2).remove(1);
        self.below(moderator, 1);
    }

    fn add(&mut self, parent: Option<usize>) -> usize {
        let index = self.nodes.len();
        if let Some(parent) = parent {
            let parent = &mut self.nodes[parent];
            // One that only passed its result on does not answer, too.
            parent.answers = false;
            parent.children.push(index);
        }
        self.nodes.push(Node {
            parent,
            children: Vec::new(),
            answers: true,
        });
        index
    }
}

impl Default for Tree {
    /// Nothing to do.
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            roots: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables 6.2 and 6.3 of the thesis: hops, messages and those at the client of one call, and of plain calls.
    #[test]
    fn queries_take_the_messages_that_were_published() {
        let published = [
            (Query::Is1, 1, 4, 4, 4),
            (Query::Is2, 4, 61, 21, 82),
            (Query::Is3, 2, 22, 12, 22),
            (Query::Is4, 1, 2, 2, 2),
            (Query::Is5, 2, 3, 2, 4),
            (Query::Is6a, 3, 6, 3, 8),
            (Query::Is6b, 4, 7, 3, 10),
            (Query::Is7, 3, 54, 23, 66),
        ];
        for (query, hops, messages, client, calls) in published {
            let tree = Shape::Query(query).tree();
            let counted = (
                tree.hops(),
                tree.messages(Form::Multihop),
                tree.client_messages(Form::Multihop),
                tree.messages(Form::Calls),
            );
            assert_eq!(counted, (hops, messages, client, calls), "{query:?}");
            assert_eq!(tree.client_messages(Form::Calls), calls, "{query:?}");
        }
        assert_eq!(published.map(|row| row.0), Query::ALL);
    }

    /// Thesis 6.3: the client of n bounces handles n + 1 messages, or 4n.
    #[test]
    fn rays_have_the_messages_and_hops_of_the_thesis() {
        for bounces in 1..20 {
            let tree = Shape::Ray { bounces }.tree();
            assert_eq!(tree.nodes().len(), 2 * bounces);
            assert_eq!(tree.hops(), bounces + 1);
            assert_eq!(tree.client_messages(Form::Multihop), bounces + 1);
            assert_eq!(tree.client_messages(Form::Calls), 4 * bounces);
        }
    }

    #[test]
    fn chains_and_fans_have_the_messages_of_their_figures() {
        for servers in 1..20 {
            let chain = Shape::Chain { servers }.tree();
            assert_eq!(chain.messages(Form::Multihop), servers + 1);
            assert_eq!(chain.messages(Form::Calls), 2 * servers);
            assert_eq!(chain.depth(Form::Calls), 2 * servers);
            let fan = Shape::Fan { servers }.tree();
            assert_eq!(fan.messages(Form::Multihop), 2 * servers + 1);
            assert_eq!(fan.client_messages(Form::Multihop), servers + 1);
            assert_eq!(fan.messages(Form::Calls), 2 * servers + 2);
            assert_eq!(fan.depth(Form::Multihop), 3);
        }
        assert!(Shape::Chain { servers: 0 }.tree().nodes().is_empty());
    }

    #[test]
    fn parents_stand_before_their_children() {
        let shapes = Query::ALL.map(Shape::Query).into_iter();
        for shape in shapes.chain([Shape::Ray { bounces: 9 }, Shape::Fan { servers: 5 }]) {
            let tree = shape.tree();
            assert_eq!(tree.roots().count(), tree.roots);
            for (index, node) in tree.nodes().iter().enumerate() {
                assert!(node.parent.is_none_or(|parent| parent < index), "{shape}");
                assert!(node.answers || !node.children.is_empty(), "{shape}");
                let below = |child: &usize| tree.nodes()[*child].parent == Some(index);
                assert!(node.children.iter().all(below), "{shape}");
            }
            assert!(
                tree.levels().is_sorted(),
                "{shape}: generation by generation"
            );
        }
    }
}
