// The rules of words.json for sentences: their length, how they open, and the project's words.
const { splitAST, SentenceSplitterSyntax } = require("sentence-splitter");

const SETTINGS = require("./words.json"); // textlint hands no options to rules of a folder

const OPENING = /^((What|Who|Whose|Whether|How|Why) [^?]*\.|Where [^?,]*\.)$/;
const INVERTED = /^(Refused|Needed|Left out|Not counted|Offered) (are|is|was|were) /;
const QUESTION_LIKE = /^(Where|How|What|Who|Why) .*: /; // names the page that a link leads to

module.exports = (context) => {
    const { Syntax, RuleError, report, locator } = context;
    const most = SETTINGS.mostWords;
    const words = Object.entries(SETTINGS.words).map(([found, said]) => [new RegExp(`\\b(?:${found})\\b`, "gi"), said]);
    return {
        [Syntax.Paragraph](node) {
            if (context.getParents?.(node)?.some((parent) => parent.type === "BlockQuote")) return;
            for (const sentence of splitAST(node).children) {
                if (sentence.type !== SentenceSplitterSyntax.Sentence) continue;
                const text = plain(sentence);
                const told = (message, index = 0) => report(sentence, new RuleError(message, { padding: locator.at(index) }));
                const count = text.split(/\s+/).filter((word) => /[\p{L}\p{N}]/u.test(word)).length;
                if (count > most) told(`${count} words in a sentence; at most ${most}`);
                if (OPENING.test(text) && !QUESTION_LIKE.test(text)) told(`opens with a clause: "${text.slice(0, 40)}"`);
                if (INVERTED.test(text)) told(`inverted: "${text.slice(0, 40)}"`);
                for (const [found, said] of words) {
                    for (const match of text.matchAll(found)) told(`"${match[0]}": say ${said}`);
                }
            }
        },
    };
};

function plain(node) {
    if (node.type === "Code") return "code";
    if (node.type === "Html") return "";
    if (node.children) return node.children.map(plain).join("");
    return node.value ?? "";
}
