// What stands around an atlas, in the other languages: names, and sentences with numbers in them.
// Only what heed itself says is looked up; words, formulas and answers stay as they are.
const STANDING = [
  "main > h1",
  "dl.sentences dt",
  "li.example .note",
  "li.example figure.map .name",
  "li.example figure.map .switch button",
  ...["> h2", "> h3", "> p", "dd span", "th button", "td:last-child"].map((x) => `.walk ${x}`),
].join();
const PHRASES = {
  en: [],
  zh: [
    [/^(.*): where it looks$/s, "$1：它看向哪里"],
    [/^Source$/, "原文"],
    [/^Translation$/, "译文"],
    [/^Reference$/, "参考译文"],
    [/^Text$/, "文本"],
    [/^Answer$/, "答案"],
    [/^Label$/, "标签"],
    [/^Of all$/, "各标签"],
    [/^Right$/, "正确标签"],
    [/^Likeliest next$/, "最可能的下文"],
    [/^(.*…: )?only ([\d,]+) of ([\d,]+) symbols .*$/s, "$1只读取了 $3 个符号中的 $2 个"],
    [/^only the last (\d+) symbols are read: .*$/, "只读取了最后 $1 个符号：模型没有更多位置"],
    [/^the last (\d+) symbols were not read: .*$/, "最后 $1 个符号未被读取：模型没有更多位置"],
    [/^a recurrent network keeps .*$/, "循环网络把读过的内容留在状态里：没有注意力"],
    [/^alignment$/, "对齐"],
    [/^Map$/, "热图"],
    [/^Lines$/, "连线"],
    [/^Step by step$/, "逐步计算"],
    [/^(.*) · place (\d+) · (.*?)( · head (\d+))?$/s, "$1 · 位置 $2 · $3$4"],
    [/ · head (\d+)$/, " · 头 $1"],
    [/^(\d) score$/, "$1 打分"],
    [/^(\d) align$/, "$1 归一"],
    [/^(\d) read$/, "$1 读取"],
    [/^q {2}(\d+) wide: /, "q  $1 维："],
    [/^k {2}(\d+ × \d+), that of the heaviest: /, "k  $1，最重的一个："],
    [/^past {2}/, "过去  "],
    [/^reach {2}/, "范围  "],
    [/: a part of your own$/, "：你自己的部件"],
    [/^e = 0: no key is compared$/, "e = 0：不比较任何键"],
    [/\bgate (?=[\d.-])/, "门 "],
    [/\bcentre (?=[\d.-])/, "中心 "],
    [/\bwindow (?=[\d.-])/, "窗口 "],
    [/\badvance (?=[\d.-])/, "前进 "],
    [/^key$/, "键"],
    [/^hidden$/, "不可见"],
    [/^of it past$/, "其中过去"],
    [/^of it bias$/, "其中偏置"],
    [/^gain$/, "增益"],
    [/^padding$/, "填充"],
    [/^lies ahead$/, "在后面"],
    [/^another text$/, "另一段文本"],
    [/^masked$/, "被遮蔽"],
    [/^outside the window$/, "在窗口之外"],
    [/^seen by the block$/, "由整块代表"],
    [/^not all visible, or near$/, "并非全部可见，或太近"],
    [/^context = /, "上下文 = "],
    [/^= what the model computed, exactly$/, "= 模型算出的结果，完全一致"],
    [/^= what the model computed, to (.*)$/, "= 模型算出的结果，相差不超过 $1"],
    [/^is NOT what the model computed: they differ by (.*)$/, "与模型算出的结果不符：相差 $1"],
    [/^nothing is gathered: the weights are the answer$/, "不作汇总：权重就是答案"],
    [/^(\d+) keys more are left out of the table\.$/, "表中略去了另外 $1 个键。"],
  ],
};
const atFirst = new WeakMap(); // what each of them said at first

function speakAround(language) {
  document.querySelectorAll(STANDING).forEach((node) => {
    if (!atFirst.has(node)) atFirst.set(node, node.textContent);
    const say = (text, [found, other]) => text.replace(found, other);
    const parts = atFirst.get(node).split(node.matches(".note") ? " · " : /$^/);
    node.textContent = parts.map((part) => PHRASES[language].reduce(say, part)).join(" · ");
  });
}
