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
    ("none", "very weak", "weak", "moderate", "strong", "very strong"),
    ("none", "very weak", "weak", "medium", "strong", "very strong"),
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


def plain(name: str) -> str:
    """A name in lower-case words, such as 'adj p val' of 'adj.P.Val'; patterns of names are matched with these."""
    return re.sub(r"(?:[^\w%±]|_)+", " ", re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", name).lower()).strip()


PREDICTED = re.compile(
    r"(?:^|[^a-z])(?:esm\w*|vae\w*|eve|evmutation|deepsequence|tranception\w*|proteinmpnn|mpnn|gemme|progen\w*|unirep"
    r"|sift\w*|polyphen\w*|provean|foldx\w*|rosetta\w*|plddt|alphafold\w*|prot ?t5|protbert|ankh|saprot"
    r"|msa ?transformer|trancepteve|site ?independent|wavenet|carp\w*|rita\w*|pppl|pll|llr|blosum\w*|netmhc\w*|camsol"
    r"|aggrescan|jackhmmer|hhblits|i?ptm|i?pae|rmsd|similarity|seq\w* ?identity|alignment \w+|[fp]ident|aln ?len"
    r"|mismatch(?:es)?|gap ?open|[qt](?:start|end|len|cov)|bits|(?:\w*tm|tm )score|lddt\w*|sasa|prob"
    r"|i?psae|pdockq\d*|composite\d*)(?:$|[^a-z])"
    r"|predict|\b(?:pred|zero ?shot|log ?likelihood|logistic regression|one ?hot|[cr]nn|e ?value"
    r"|bit ?score)\b"
)
"""Names of what a model predicted, or computed from the sequence or from a structure; a search's columns among them."""

PROBABILITY = re.compile(
    r"\b[pq] ?(?:val(?:ue)?s?|adj(?:usted)?)\b|\badj(?:usted)? ?[pq]\b|\bfdr\b|\bbonferroni\b|^[pq]$"
)
UNCERTAINTY = re.compile(
    r"\b(?:log\d*)?(?:sd|std|stdev|std ?dev\w*|sem|se|std ?err\w*|stderr|err|errors?|(?:\d\d%? ?)?ci ?(?:\d\d)?%?"
    r"|cv|var|variance|conf\w* (?:int\w*|limits?|bounds?)|uncertainty|epsilon|sigma|mad|iqr"
    r"|(?:lower|upper) (?:bound|limit|ci)|n?msr|rmse|rss|chi ?(?:2|sq\w*)|r2|r ?sq\w*)(?:\b|$)|±"
)
SIGNED = re.compile(r"ci\b|ci ?\d|conf|bound|limit|±")
"""Names of uncertainties that may be below 0: ends of an interval."""
COUNTS = re.compile(
    r"^(?:n|count|counts|reads|n ?reads|num ?reads|n ?rep\w*|replicates|(?:n ?)?obs|n ?mut\w*|num ?mut\w*|mutations"
    r"|hamming\w*|edit ?distance|rank|order|depth|coverage|inp(?:ut)?|sel(?:ected)?|unselected|(?:pre|post) ?sel\w*)$"
    r"|\b(?:n|exp(?:erimen)?ts)$|^(?:n|num|number|nr) (?:of )?\w+(?: \w+)*$"
    r"|\b(?:edit|hamming|lev(?:enshtein)?) ?distance\b"
)
READS = re.compile(r"\b(?:\w*(?:reads?|counts?)|times ?seen|\w+ call support)\b")
YEAR = re.compile(r"\byear\b")
DESCRIPTORS = re.compile(
    r"^(?:(?:seq\w*|calc\w*|computed|theor\w*) )?"
    r"(?:len|length|seq ?len\w*|n ?residues|mw|mol\w* weight|mass|pi|charge|net charge|gravy|a?logp|tpsa|num h \w+"
    r"|penetration depth|tilt angle|disordered conformation propensity|linear moment|propensity to .*"
    r"|angle subtended .*|amphiphilicity index|(?:normali[sz]ed )?hydrophob\w*(?: residues?| moment)?(?: %)?"
    r"|(?:hydrophobic|amphipathic) moment|(?:boman|aliphatic|instability) ?ind(?:ex)?|charge density|hydroph\w* ratio"
    r"|u ?h|u?h (?:eisenberg|gravy|kyte ?doolittle|hopp ?woods)|mol ?log ?p|mol ?wt|bertz ?ct|num ?h ?(?:don|accept)ors"
    r"|fr [a-z]\w*|(?:shannon |sequence )?entropy|(?:molar )?(?:extinction|ext) coef\w*"
    r"|(?:pca?|principal component|t ?sne|umap)(?: ?[a-z])? ?\d+"
    r"|[xyz] ?coord\w*|isoelectric ?(?:point|pt)|od(?: ?\d+)?|aromaticity|(?:a|non ?)?polar"
    r"|\w+ (?:mod ?)?(?:buried|exposed)|(?:mod ?)?(?:buried|exposed) \w+|(?:sample )?weights?)"
    r"(?: (?:seq\w*|calc\w*|computed|theor\w*|v[hl]|fv))?$"
)
PLACES = re.compile(
    r"^(?:(?:mut\w*|aa|seq\w*|pdb|uniprot|residue|res|first|second|third|reference) ?)?"
    r"(?:pos|position|site|resi|residue|res ?num|res ?id|number|num"
    r"|index|codon)(?: ?(?:number|num|no|index|id|pdb|uniprot))?$"
    r"|^(?:start|end|begin|stop|row|col|column|well|plate|passage|cycle|ptm ?site|residue ?number)$"
    r"|\b(?:gel|plate|run|row|exp\w*|batch|lane|tube|box|file|line|sample|clone|entry|item|record|data ?(?:set)?|raw"
    r"|old|orig\w*|new|global|seq\w*|source|table|figure) ?(?:number|num|no|nr|index|idx|id)$"
)
"""Names of whole numbers that say where or what a row is."""
INDEX = re.compile(
    r"^(?:column \d+|unnamed(?: \d+)?(?: level \d+)*|index(?: level \d+)?|idx|level \d"
    r"|row ?(?:id|index|num\w*|nr|no)?|nr|no|x|#|)$"
)
WITHOUT_NAME = re.compile(r"^(?:column \d+|unnamed\b.*|index level \d+)$")
"""Names that a program gave."""
RESIDUE = re.compile(
    r"wild|\b(?:wt|mut|mt|mutant|ref|alt|from|to|old|new|orig\w*|aa\d?|residue|res|amino ?acid|letter)(?:\b|aa|res)"
    r"|^(?:(?:pos|position|site|imgt|kabat|aho) ?)?\d+[a-z]?$"
)
"""Names of columns of single residues, of which some are numbers of an alignment."""
MASK = re.compile(r"\b(?:mask\w*|resolved|observed)\b")
META = re.compile(
    r"\b(?:comments?|notes?|remarks?|operator|user|author|person|plate|well|lab|source|reference|refs?|doi|pmids?|pubmed"
    r"|url|file|vector|host|strain|barcode|gene|uniprot|pdb|pdb ?id|description|desc|title|journal|publication|paper"
    r"|project|protocol|instrument|assay ?id|instructions?|codon\w*|primer\w*|supplier|vendor|tag|accession|tax ?id"
    r"|d ?type|(?:inter|extra)polat\w*|imputed"
    r"|link|to ?be ?\w+|(?:measurement|assay|mut\w*|seq\w*|source|data|sample) ?(?:type|kind|class)"
    r"|origin|control|data ?set|chains?"
    r"|isotype|subtype|germline|(?:tr[abdg]|ig[hkl])[vdj]\w*|[vdj] ?(?:gene|call|segment))\b"
)
MADE = re.compile(r"\b(?:chirality|stereo\w*|linearity|topology|models?|ionic state|formulation)\b")
"""Names of words that say how a protein was made or measured."""
RATING = re.compile(r"^(?:score|(?:confidence|evidence|quality)(?: ?(?:score|level|rating))?)$")
"""Names of whole numbers that rate a row of a database, where they have few values."""
NUMBERED = re.compile(
    r"\b(?:ids?|pmids?|pub ?med|(?:med|pdb|mol|assay|ref|tax)id|accession|doi"
    r"|(?:kegg|chebi|chembl|pub ?chem|uniprot|ncbi|genbank|cas)(?: (?:no|num|number|code|entry))?)\b"
)
"""Names of whole numbers that are ids, also where rows share one."""
THREE_LETTERS = {
    *("ala", "arg", "asn", "asp", "cys", "gln", "glu", "gly", "his", "ile", "leu", "lys", "met", "phe", "pro", "ser"),
    *("thr", "trp", "tyr", "val"),
}
KINDS = {
    *("wt", "wild type", "wild-type", "wildtype", "mutant", "mut", "variant", "native", "missense", "synonymous"),
    *("nonsense", "silent", "stop", "frameshift", "indel", "deletion", "insertion"),
    *("exact", "range", "approximate", "lower bound", "upper bound", "lower_bound", "upper_bound"),
}
EC = re.compile(r"^(?:EC ?)?[1-7](?:\.(?:n?\d+|-)){3}(?:\s*[;,|]|$)")
IN_TEXT = re.compile(
    r"[=<>~≈≤≥±]\s*-?\d|\+/?-\s*\d|\d\s*(?:%|°C|kcal|kJ|(?:micro|nano|milli|[unmµμp])?M\b|[unmµμ]?g\b)"
)
"""Enzyme Commission numbers, or a list of them; numbers with a word of what they are or with a unit."""
PROSE = re.compile(r"[A-Za-z]{2,}[^A-Za-z]*\s[^A-Za-z]*[A-Za-z]{2,}")
"""Several words, with or without numbers among them."""
SEGMENT = re.compile(r"(?:TR[ABDG]|IG[HKL])[VDJ]")
"""Names of gene segments of a receptor or an antibody."""
ALLELE = re.compile(r"HLA-|H-?2-|Mamu-|BoLA-|SLA-|D[PQR][AB]\d?[*_]?\d\d|[ABC]\*?\d\d:\d\d")
"""Names of alleles of MHC, to which peptides are bound."""
SET = re.compile(
    r"^(?:assay |exp\w* |measurement |reaction |buffer )?(?:ph|t|temp(?:erature)?)"
    r"(?: (?:c|k|celsius|kelvin|value|deg\w*))?$"
    r"|^(?:(?:stock |final |sample |protein |peptide )?conc(?:entration)?|dose|time(?: ?point)?"
    r"|salt|nacl|ionic strength|pressure)$"
)
"""Names of what an experimenter set, whatever the numbers: under which another one was measured."""
MODIFICATION = re.compile(r"\b(?:mods?|modifications?|ter|terminus|cyc|cycli[sz]ation)\b")
"""Names of modifications of a protein, of which a blank cell says that there is none."""
CONDITION = re.compile(
    SET.pattern
    + r"|^assay$|\b(?:assay (?:type|name|conditions?|method|ph|temp\w*)|buffer|method|technique|conditions?|substrate"
    r"|ligand|inhibitor|drug|compound|cofactor|solvent|additive|media|medium|antigen|epitope|allele|hla|mhc|cell ?line"
    r"|kegg|chebi|pub ?chem)\b|" + MODIFICATION.pattern
)
"""Names of what was set, or of a partner or a modification of the protein."""
HOST = re.compile(r"^(?:(?:protein )?expression(?: (?:host|system|strain|organism|vector))?|host|system)$")
"""Names of hosts of expression, where cells are names."""
GROUP = re.compile(
    r"\b(?:cluster\w*|famil(?:y|ies)|group|clan|superfamily|organism|species|taxon\w*|genus|parent|scaffold|campaign"
    r"|batch|lot|round|generation|domain|phylum|lineage|construct|template|backbone|clade|kingdom|series|experiment"
    r"|(?:sub ?)?library"
    r"|^protein(?: name)?$|wt ?(?:name|id|pdb)?"
    r"|wild ?type ?(?:name|id)?)\b"
)
ORGANISM = re.compile(r"\b(?:organism|species|taxon\w*|genus|strain)\b")
LABEL = re.compile(r"\btargets?\b")
"""Names of labels that are names of groups where other columns are labels and the cells are words."""
PART = re.compile(r"\b(?:set|split|part|partition|stage|subset|fold ?type|data ?set|phase|usage|split ?id)\b")
FOLD = re.compile(r"\b(?:cv|(?!scaffold)\w*folds?|partition|split|set|part)(?: ?(?:id|index|number|no))?$")
IS_PART = re.compile(r"^(?:is |in )?(?P<part>train(?:ing)?|test(?:ing)?|hold ?out|held ?out)(?: set)?$")
"""Names of columns that are true in the rows of one part."""
VALIDATION = re.compile(r"^(?:is |in )?(?:validation|valid|val)$")
IDENTIFIER = re.compile(
    r"\b(?:id|ids|name|variant|clone|entry|accession|identifier|label|construct|key|code|sample|header)\d*\b"
    r"|^(?:peptide|protein|sequence|seq|molecule|compound|antibody|nanobody|enzyme|mutant|design|amp)s?$"
)
"""Names of ids, those of the molecule itself among them."""
LOGARITHM = re.compile(r"\b(?:log\w*|ln|p(?:k[a-z]?|ic ?50|ec ?50|h|chembl))\b")
"""Names of numbers that are logarithms."""
LINEAR = re.compile(LOGARITHM.pattern + r"|\b(?:d?tm\d?|t ?50|t ?opt|ogt|temp\w*|melting\w*)\b")
"""Names of numbers of which no logarithm is learned: logarithms and temperatures."""
FITTED = re.compile(r"^(?:k ?m|v ?max|k ?cat|ec ?50|ic ?50|hill\w*|slope|auc|top|bottom|b ?max|intercept)$")
"""Constants that are fitted to a series of doses; on their own they are what was measured."""
MEASURED = re.compile(
    r"^(?:score|y|tm\w*|k ?(?:m|d|i|a|on|off|cat)|d+ ?g|rt|ee|va|fc|od|class(?:es)?|topt|t ?50|ss\w?)\b"
    r"|(?:\b|\d)(?:(?:log\d*|ln|p)? ?(?:[a-z]?[a-z][cdi] ?\d\d|m[ibf]cs?|k ?[adim]|kcat|tit[er]{2}s?)"
    r"|(?:d+|delta) ?g|targets?|phenotype|outcome|readout|results?|meas\w*|experimental|observed"
    r"|half ?life|lfc|fold change|signal|effect"
    r"|rates?|turnover|[rm]fi|rfu|elisa|spr|bli|assay|potency|efficac\w*|viscosity|abundance|uptake|transport|escape"
    r"|dms|anti|\w*label\w*|\w*entry|d?tm|expr|log\d* ?fc|hic|psr|bvp|[a-z]fp|optim\w*|topology|clinical\w*|kcat ?km"
    r"|vmax|specific\w*|ph ?opt\w*|ha?emoly\w*)\b"
    r"|(?:\b|\d)(?:in|bio|co|cyto|thermo|non|un|hyper|auto|immuno|anti|re)?(?:activ|fitness|affinit|bind|melting|stab"
    r"|yield|express|solub|fluor|bright|intensit|emission|excitation|growth|enrich|inhib|toxic|viab|surviv|neutrali|permeab"
    r"|aggregat|retention|conversion|selectiv|respon|locali[sz]|location|resist|immunogen|antigenic|allergen|microbial"
    r"|bacterial|viral|fungal|cancer|tumou?r|absor|pathogen|kill|lysis|infect|hydroly|degrad|cleav|secret|packag|tropism"
    r"|disorder|secondary)"
)
"""Names of what is measured, or annotated by a person; a number of another name may have been computed."""

SEQUENCE = re.compile(
    r"seq|protein|peptide|(?:^|[\s_-])(?:vh|vl|heavy|light|chain\w*|primary|aa|cdr\w*|fv|hc|lc)(?:$|[\s_-])", re.I
)
SHORT_SEQUENCE = re.compile(r"seq|peptide|(?:^|[\s_-])(?:cdr\w*)(?:$|[\s_-])", re.I)
"""Names of columns whose sequences may be as short as names of genes."""
WILD = re.compile(r"wild|(?:^|[\s_-])(?:wt|parent|reference|ref|native)(?:$|[\s_-])", re.I)
MUTATION = re.compile(r"mut|variant|substitution|change|hgvs", re.I)
UNIT, OF_UNITS = re.compile(r"unit", re.I), re.compile(r"\bunits?\b")
SUMMARY = re.compile(r"\b(?:mean|avg|average|median)\b")

CHAINS = (
    ("heavy", "light"),
    ("vh", "vl"),
    ("hc", "lc"),
    ("alpha", "beta"),
    ("tra", "trb"),
    ("cdr3a", "cdr3b"),
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

REPLICATE_FIRST = re.compile(r"(?P<repeat>rep(?:l|lica|licate)?[\s._-]*\d{1,2})[\s._-]+(?P<base>.+)", re.I)
REPLICATE = re.compile(
    r"(?P<base>.*?)[\s._#(-]*(?P<word>replica(?:te)?|repl|rep|run|trial|exp|measurement|(?<![^\W\d_])[rn])?[\s._#-]*(?P<number>\d{1,2})\)?",
    re.I,
)
SERIES = re.compile(
    SET.pattern
    + r"|\b(?:day|week|month|h|hours?|hr|min|round|cycle|passage|gen\w*|step|stage|target|off ?target|strain"
    r"|epitope|antigen|site|domain|chain|peak|state|bin|gate|sort|level|class|task|label|property|program|model|method)$"
)
"""Names of what numbers tell apart: conditions, targets, steps, programs."""
DERIVED = re.compile(
    r"\b(?:mean|average|avg|median|total|sum|overall|any|all|both|either|delta|diff\w*|change|ratio|fold|max\w*|min\w*|best|worst"
    r"|d+ ?g|selectivity|specificity|efficiency|index|score|label|class|norm\w*|rel\w*|combined|geo\w*)\b"
)
"""Names of what is made of other columns."""
DATE = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}(?:[ T]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?Z?)?"
    r"|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{4}/\d{1,2}/\d{1,2}"
)
