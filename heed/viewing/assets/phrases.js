// The texts of a page in the other languages: names, and sentences with numbers in them.
// Only heed's own texts are looked up; words, formulas and answers stay as they are.
const LANGUAGES = { en: "English", zh: "中文" };
const STANDING = [
  "main > h1",
  "dl.sentences dt",
  "li.example .note",
  "li.example .chart-name",
  "li.example figure.map .name",
  "li.example figure.map .switch button",
  ...["> h2", "> h3", "> p", "dd span", "th button", "td:last-child"].map((x) => `.walk ${x}`),
  ...["~ h2", "~ p"].map((x) => `main > .languages ${x}`),
  ...["accuracy", "macro-F1", "next sentence"].map((x) => `figure.chart [data-name="${x}"]`),
  ...["text[font-weight]", "text.heed-soft", "g > title"].map((x) => `figure.chart ${x}`),
  ...["th button", "td:first-child", "td:last-child"].map(
    (x) => `main > .languages ~ .scroll ${x}`,
  ),
  ...["option", ".name", ".switch button", ".note > span"].map((x) => `.scrub ${x}`),
].join();
const PHRASES = {
  en: [],
  zh: [
    [/^(.*) and (.*): attention$/s, "$1 与 $2：注意力"],
    [/^(.*): attention$/s, "$1：注意力"],
    [/^Source$/, "原文"],
    [/^Translation$/, "译文"],
    [/^Reference$/, "参考译文"],
    [/^Text$/, "文本"],
    [/^Answer$/, "答案"],
    [/^Label$/, "标签"],
    [/^Predicted$/, "预测"],
    [/^Probabilities$/, "概率"],
    [/^Prompt$/, "提示"],
    [/^Written$/, "续写"],
    [/^Given$/, "给定"],
    [/^Filled$/, "填入后"],
    [/^Predicted next symbol$/, "预测的下一个符号"],
    [/^Predicted next symbol at each position$/, "各位置预测的下一个符号"],
    [/^(.*…: )?only ([\d,]+) of ([\d,]+) symbols .*$/s, "$1只读取了 $3 个符号中的 $2 个"],
    [/^only the last (\d+) symbols are read: .*$/, "只读取了最后 $1 个符号：模型没有更多位置"],
    [/^the last (\d+) symbols were not read: .*$/, "最后 $1 个符号未被读取：模型没有更多位置"],
    [/^this recurrent network has no attention$/, "这个循环网络没有注意力"],
    [/^answer of (.*?): (.*)$/s, "$1 的答案：$2"],
    [/^both models read the answer of (.*) here$/s, "这里两个模型读的都是 $1 的答案"],
    [/^alignment$/, "对齐"],
    [/^Map$/, "热图"],
    [/^Lines$/, "连线"],
    [/^attention weights/, "注意力权重"],
    [/, mean of (\d+) heads$/, "，$1 个头的平均"],
    [/ · mean of (\d+) heads$/, " · $1 个头的平均"],
    [/^([\d,]+) others?: (\S+) in total( · |$)/, "另有 $1 个，共 $2$3"],
    [/(^| · )uniform weights: (\S+) each$/, "$1均匀权重：各为 $2"],
    [/^Step by step(?=: |$)/, "逐步计算"],
    [/^the text(?= · position \d)/, "整段文本"],
    [/^(.*) · position (\d+) · (.*?)( · head (\d+))?$/s, "$1 · 位置 $2 · $3$4"],
    [/ · head (\d+)$/, " · 头 $1"],
    [/^one of (?=\d)/, "可选："],
    [/^(可选：\d+) attentions/, "$1 个注意力"],
    [/^(可选：.*) and (?=\d+ heads$)/, "$1和 "],
    [/^(可选：.*?)(\d+) heads$/, "$1$2 个头"],
    [/^(\d) score$/, "$1 打分"],
    [/^(\d) align$/, "$1 归一"],
    [/^(\d) read$/, "$1 读取"],
    [/^q {2}(\d+) numbers: /, "q  $1 维："],
    [/^k {2}(\d+ × \d+), of the largest weight: /, "k  $1，权重最大的一个："],
    [/^past {2}/, "过去  "],
    [/^reach {2}/, "范围  "],
    [/: one query for the whole text$/, "：整段文本共用一个查询"],
    [/: a custom part$/, "：你自己的部件"],
    [/^e = 0: keys are not compared$/, "e = 0：不比较任何键"],
    [/\bgate (?=[\d.-])/, "门 "],
    [/\bcentre (?=[\d.-])/, "中心 "],
    [/\bwindow (?=[\d.-])/, "窗口 "],
    [/\badvance (?=[\d.-])/, "前进 "],
    [/^key$/, "键"],
    [/^hidden$/, "不可见"],
    [/^past term$/, "过去项"],
    [/^bias term$/, "偏置项"],
    [/^gain$/, "增益"],
    [/^padding$/, "填充"],
    [/^later position$/, "在后面"],
    [/^another text$/, "另一段文本"],
    [/^masked$/, "被遮蔽"],
    [/^outside the window$/, "在窗口之外"],
    [/^pooled in its block$/, "汇总在块中"],
    [/^not all visible, or near$/, "并非全部可见，或太近"],
    [/^context = /, "上下文 = "],
    [/^= the model's context, exactly$/, "= 模型的上下文，完全一致"],
    [/^= the model's context to within (.*)$/, "= 模型的上下文，相差不超过 $1"],
    [/^NOT the model's context: they differ by up to (.*)$/, "与模型的上下文不符：最大相差 $1"],
    [/^no context: the weights are the output$/, "没有上下文：权重就是输出"],
    [/^The table leaves out ([\d,]+) others?\.$/, "表中略去了另外 $1 个键。"],
    [/^(.*): training history$/s, "$1：训练过程"],
    [/^Language$/, "语言"],
    [/^Samples during training$/, "训练中的样例"],
    [/^This model has no attention; .* its loss\.$/, "这个模型没有注意力，因此只显示损失。"],
    [/^This model has no attention; .* scores\.$/, "这个模型没有注意力，因此只显示损失和得分。"],
    [/^validation loss$/, "验证损失"],
    [/^validation scores(?= · |$)/, "验证得分"],
    [/^validation (?=accuracy$|next sentence$)/, "验证："],
    [/(^|：| · )accuracy(?=$|: \S+ step, )/, "$1准确率"],
    [/(^|：| · )macro-F1(?=$|: \S+ step, )/, "$1宏平均 F1"],
    [/(^|：| · )next sentence(?=$|: \S+ step, )/, "$1下一句"],
    [/^step (\S+), the only validation$/, "第 $1 步，唯一的一次验证"],
    [/^value$/, "数值"],
    [/^unit$/, "单位"],
    [/^entropy of attention(?= \(| · |$)/, "注意力的熵"],
    [/^entropy of (.*)$/s, "$1 的熵"],
    [/^sharpness of attention(?= \(| · |$)/, "注意力的尖锐度"],
    [/^sharpness of (.*)$/s, "$1 的尖锐度"],
    [/(^|：| · )layer (\d+)(?=$| · | 的|: \S+ step, )/, "$1第 $2 层"],
    [/^nats$/, "纳特"],
    [/^mean largest weight$/, "平均最大权重"],
    [/: (\S+) step, (\S+) %$/, "：第 $1 步，$2 %"],
    [/: (\S+) step, (\S+) nats$/, "：第 $1 步，$2 纳特"],
    [/: (\S+) step, (\S+) mean largest weight$/, "：第 $1 步，平均最大权重 $2"],
    [/^loss：/, "损失："],
    [/^step$/, "步"],
    [/^step (\d+)(?= · |$)/, "第 $1 步"],
    [/ · alignment$/, " · 对齐"],
  ],
};
const atFirst = new WeakMap(); // the first text of each node
let spoken = "en";
const phrased = (text) =>
  PHRASES[spoken].reduce((said, [found, other]) => said.replace(found, other), text);

function speakAround() {
  document.querySelectorAll(STANDING).forEach((node) => {
    // A text of a drawing may be empty, or have its tooltip behind it.
    const words = (node.matches("text") && node.firstChild) || node;
    if (!atFirst.has(words)) atFirst.set(words, words.textContent);
    const parts = atFirst.get(words).split(node.matches(".note") ? " · " : /$^/);
    words.textContent = parts.map(phrased).join(" · ");
  });
}
function speak(language) {
  spoken = language;
  speakAround();
}
document.addEventListener("speak", ({ detail }) => speak(detail));
if (document.documentElement.lang in PHRASES) speak(document.documentElement.lang);
