"""Words by which columns and cells are recognized.

In: nothing. Out: words and patterns. Kept: nothing. A name alone decides only where cells cannot: what a model
predicted is a number like one that was measured.
"""

import re

NOT_MEASURED = (
    *("na", "n/a", "nan", "nd", "n.d.", "n.d", "n.a.", "-", "--", "—", "–", "?", ".", "none", "null", "nil", "missing"),
    *("not determined", "not tested", "not measured", "n.t.", "nt", "tbd", "failed", "fail", "no data", "unknown"),
    *("#n/a", "#value!", "#div/0!", "#ref!", "#num!", "empty", "excluded", "pending"),
)
"""Texts that mean that nothing was measured, in lower case."""

SCALES = (
    ("none", "low", "medium", "high", "very high"),
    ("no", "low", "moderate", "high"),
    ("none", "weak", "moderate", "strong", "very strong"),
    ("negative", "weak", "intermediate", "strong"),
    ("low", "intermediate", "high"),
    ("low", "mid", "high"),
    ("poor", "fair", "good", "very good", "excellent"),
    ("small", "medium", "large"),
    ("dead", "sick", "slow", "normal", "fast"),
    ("-", "+/-", "+", "++", "+++", "++++"),
    ("a", "b", "c", "d", "e", "f"),
)
"""Classes in their order, from the lowest."""

PREDICTED = re.compile(
    r"(?:^|[^a-z])(?:esm\w*|vae\w*|eve|evmutation|deepsequence|tranception\w*|proteinmpnn|mpnn|gemme|progen\w*|unirep"
    r"|sift\w*|polyphen\w*|provean|foldx\w*|rosetta\w*|plddt|alphafold\w*|prot_?t5|protbert|ankh|saprot|msa_transformer"
    r"|trancepteve|site_independent|wavenet|carp\w*|rita\w*|pppl|pll|llr|blosum\w*|netmhc\w*|camsol|aggrescan)"
    r"(?:$|[^a-z])|predict|(?:^|_)(?:pred|zero_?shot|log_?likelihood)(?:$|_)",
    re.I,
)
"""Names of what a model predicted, or computed from the sequence."""

UNCERTAINTY = re.compile(
    r"(?:^|[\s_.(±-])(?:sd|std|stdev|sem|se|stderr|err|error|ci|ci95|cv|variance|uncertainty)\)?$", re.I
)
COUNTS = re.compile(
    r"^(?:n|count|counts|reads|n_?reads|num_?reads|n_?rep\w*|replicates|n_?obs|n_?mut\w*|num_?mut\w*|mutations"
    r"|hamming\w*|edit_?distance|rank|order)$|(?:^|[\s_])(?:reads|counts|n)$",
    re.I,
)
DESCRIPTORS = re.compile(
    r"^(?:len|length|seq_?len\w*|n?_?residues|mw|mol\w*[\s_]weight|mass|pi|charge|net_charge|gravy|alogp|logp|tpsa"
    r"|pos|position|site|resi|residue_?number|start|end|row|col|well|plate|year|passage|cycle|num_h_\w+)$",
    re.I,
)
META = re.compile(
    r"(?:^|[\s_-])(?:comments?|notes?|remarks?|operator|user|author|person|plate|well|lab|source|reference|ref|doi|pmid"
    r"|url|file|vector|host|strain|barcode|gene|uniprot|pdb|description|desc|title|buffer|media|medium|project|protocol"
    r"|instrument|assay_?id|instructions?|codon\w*|primer\w*|supplier|vendor|tag)(?:$|[\s_-])",
    re.I,
)
GROUP = re.compile(
    r"(?:^|[\s_-])(?:cluster\w*|famil(?:y|ies)|group|clan|superfamily|organism|species|taxon\w*|genus|parent|scaffold"
    r"|campaign|batch|lot|round|construct|template|backbone|clade|kingdom|series|library|experiment|target)"
    r"(?:$|[\s_-])",
    re.I,
)
PART = re.compile(r"^(?:set|split|part|partition|stage|subset|fold_?type|data_?set|dataset|phase)$", re.I)
FOLD = re.compile(r"^(?:cv_?)?folds?(?:_?(?:id|index|number))?$|^cv$", re.I)
VALIDATION = re.compile(r"^(?:is_?)?(?:validation|valid|val)$", re.I)
IDENTIFIER = re.compile(
    r"(?:^|[\s_-])(?:id|ids|name|variant|clone|entry|accession|identifier|label|construct|protein_?id|key|code|mol_id"
    r"|sample|header)(?:$|[\s_\d-])",
    re.I,
)
FITTED = re.compile(r"^(?:k_?m|v_?max|k_?cat|ec_?50|ic_?50|hill\w*|slope|auc|top|bottom|b_?max|intercept)$", re.I)
"""Constants that are fitted to a series of doses; on their own they are what was measured."""

SMILES = re.compile(r"smiles|inchi", re.I)
MOLECULE = re.compile(r"[A-Za-z0-9@+\-\[\]()=#$/\\%.:*~]*[=#()\[\]@][A-Za-z0-9@+\-\[\]()=#$/\\%.:*~]*")
"""A molecule as SMILES that has a bond, a branch or a bracket."""
SEQUENCE = re.compile(
    r"seq|protein|peptide|(?:^|[\s_-])(?:vh|vl|heavy|light|chain\w*|primary|aa|cdr\w*|fv|hc|lc)(?:$|[\s_-])", re.I
)
SHORT_SEQUENCE = re.compile(r"seq|peptide|(?:^|[\s_-])(?:cdr\w*)(?:$|[\s_-])", re.I)
"""Names of columns whose sequences may be as short as names of genes."""
WILD = re.compile(r"wild|(?:^|[\s_-])(?:wt|parent|reference|ref|native)(?:$|[\s_-])", re.I)
MUTATION = re.compile(r"mut|variant|substitution|change|hgvs", re.I)
UNIT = re.compile(r"unit", re.I)

CHAINS = (
    ("heavy", "light"),
    ("vh", "vl"),
    ("hc", "lc"),
    ("alpha", "beta"),
    ("tra", "trb"),
    ("chain_a", "chain_b"),
    ("chain a", "chain b"),
    ("chain1", "chain2"),
    ("chain_1", "chain_2"),
    ("protein_a", "protein_b"),
    ("protein1", "protein2"),
    ("protein_1", "protein_2"),
    ("seq_a", "seq_b"),
    ("seq1", "seq2"),
    ("seq_1", "seq_2"),
    ("sequence_a", "sequence_b"),
    ("sequence1", "sequence2"),
    ("sequence_1", "sequence_2"),
    ("sequence 1", "sequence 2"),
    ("receptor", "ligand"),
)
"""Words that tell two chains of one row apart."""

REPLICATE = re.compile(
    r"(?P<base>.*?)[\s._#(-]*(?P<word>replicate|repl|rep|run|trial|exp|measurement|r|n)?[\s._#-]*(?P<number>\d{1,2})\)?",
    re.I,
)
DATE = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}(?:[ T]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?Z?)?"
    r"|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{4}/\d{1,2}/\d{1,2}"
)
