"""The words and the rules of the built-in corpus, as data: `grammar.py` reads them.

A noun has a kind (what it is), a verb the kinds that it goes with, so that nobody eats a bicycle.
看 is read with a text and watch with a film: the words around it decide, never chance.

Each word has its part of speech, in the universal tags of UD v2 (universaldependencies.org): that
of its table, or of the row (land/PROPN), or its own (look+for/ADP).
"""

COUNTED = ("person", "text", "film", "food", "thing", "clothes", "animal")
UNCOUNTED = ("meal", "drink", "ball", "language", "sound", "land")
PASTIMES = ("text", "film", "food", "meal", "drink", "ball", "language", "sound")

# What a name in braces stands for in a rule; the rule is repeated for each value.
RANGES = {
    "kind": COUNTED + UNCOUNTED,
    "counted": COUNTED,
    "uncounted": UNCOUNTED,
    "pastime": PASTIMES,
    "portable": ("text", "food", "clothes"),
    "handled": ("text", "food", "thing", "clothes"),
    "had": ("person", "text", "food", "thing", "clothes", "animal"),
    "taken": (*COUNTED, "drink"),
    "owned": ("text", "thing", "clothes"),
    "who": ("i", "you", "he", "they"),  # the subject, as English verbs tell it apart
    "asked": ("you", "he", "they"),
}

# kind: word, measure word, one, many
NOUNS = """
person: 老师 位 teacher teachers, 医生 位 doctor doctors, 作家 位 writer writers,
    学生 个 student students, 朋友 个 friend friends, 孩子 个 child children,
    司机 个 driver drivers, 护士 个 nurse nurses
text: 书 本 book books, 小说 本 novel novels, 信 封 letter letters, 报告 份 report reports,
    故事 个 story stories
film: 电影 部 film films, 比赛 场 match matches
food: 苹果 个 apple apples, 橘子 个 orange oranges, 鸡蛋 个 egg eggs, 蛋糕 个 cake cakes,
    饺子 个 dumpling dumplings
thing: 手机 部 phone phones, 电脑 台 computer computers, 汽车 辆 car cars,
    自行车 辆 bicycle bicycles, 礼物 件 present presents
clothes: 衬衫 件 shirt shirts, 外套 件 coat coats, 裙子 条 skirt skirts
animal: 猫 只 cat cats, 狗 只 dog dogs, 鸟 只 bird birds
meal: 米饭 - rice rice, 面条 - noodles noodles, 牛肉 - beef beef
drink: 茶 - tea tea, 水 - water water, 咖啡 - coffee coffee, 牛奶 - milk milk
ball: 篮球 - basketball basketball, 网球 - tennis tennis
language: 中文 - chinese/PROPN chinese/PROPN, 英文 - english/PROPN english/PROPN,
    法文 - french/PROPN french/PROPN
sound: 音乐 - music music
land/PROPN: 中国 - china china, 法国 - france france, 日本 - japan japan, 英国 - england england,
    北京 - beijing beijing, 上海 - shanghai shanghai
"""

# word, base, third person, past: kinds. Two words of English are joined by +.
DEEDS = """
看 read reads read: text
看 watch watches watched: film
写 write writes wrote: text
买 buy buys bought: text food thing clothes meal drink animal
卖 sell sells sold: text food thing clothes
找 look+for/ADP looks+for/ADP looked+for/ADP: person text thing clothes animal
吃 eat eats ate: food meal
做 cook cooks cooked: meal
喝 drink drinks drank: drink
用 use uses used: thing
穿 wear wears wore: clothes
洗 wash washes washed: clothes food
打 play plays played: ball
说 speak speaks spoke: language
学习 study studies studied: language
听 listen+to/ADP listens+to/ADP listened+to/ADP: sound
帮助 help helps helped: person animal
等 wait+for/ADP waits+for/ADP waited+for/ADP: person
看见 see sees saw: person animal
"""
FEELINGS = """
喜欢 like likes liked: person text film food thing clothes animal
喜欢 like likes liked: meal drink ball language sound land
爱 love loves loved: person text film animal sound land
需要 need needs needed: person text food thing clothes meal drink
认识 know knows knew: person
想念 miss misses missed: person land
"""
CHANGES = """
卖掉 sell sells sold: text thing clothes
弄丢 lose loses lost: text thing clothes
带走 take+away/ADV takes+away/ADV took+away/ADV: text thing clothes
洗好 wash washes washed: clothes
修好 repair repairs repaired: thing
写完 finish finishes finished: text
"""
VERBS = """
Alone: 工作 work works worked, 睡觉 sleep sleeps slept,
    跑步 run runs ran, 唱歌 sing sings sang, 跳舞 dance dances danced, 游泳 swim swims swam
Move: 去 go+to/ADP goes+to/ADP went+to/ADP, 来 come+to/ADP comes+to/ADP came+to/ADP
Say: 知道 know knows knew, 觉得 think thinks thought, 相信 believe believes believed,
    希望 hope hopes hoped
Hand: 借给 lend lends lent, 寄给 send sends sent, 卖给 sell sells sold
"""

# word, English: kinds. A short one stands before its noun as it is, a long one with 的.
SHORT = """
新 new: text film thing clothes
旧 old: text film thing clothes
好 good: person text film thing
大 big: food thing animal
小 small: food thing animal
"""
LONG = """
有趣 interesting: person text film
有名 famous: person text film
奇怪 strange: person text film animal
年轻 young: person
聪明 clever: person animal
善良 kind: person
漂亮 beautiful: thing clothes animal
贵 expensive: thing clothes food
便宜 cheap: thing clothes food
新鲜 fresh: food
可爱 cute: animal
"""

WORDS = """
I/PRON: 我 i
You/PRON: 你 you, 你们 you
He/PRON: 他 he, 她 she
They/PRON: 我们 we, 他们 they
Boy/PROPN: 小明 xiaoming, 大卫 david, 汤姆 tom, 约翰 john
Girl/PROPN: 小红 xiaohong, 安娜 anna, 玛丽 mary, 丽丽 lili
Third/PRON: 他 him, 她 her, 他们 them
Other_i/PRON: 你 you
Other_you/PRON: 我 me, 我们 us
Other_he/PRON: 我 me, 你 you, 我们 us
Other_they/PRON: 你 you
Poss/PRON: 我 my, 你 your, 他 his, 她 her, 我们 our, 他们 their
Kin/NOUN: 妈妈 mother, 爸爸 father, 哥哥 brother, 姐姐 sister, 奶奶 grandmother
Number/NUM: 两 two, 三 three, 四 four, 五 five, 六 six, 十 ten
City/PROPN: 北京 beijing, 上海 shanghai, 南京 nanjing, 伦敦 london, 巴黎 paris
Venue/NOUN: 图书馆 library, 公园 park, 学校 school, 医院 hospital, 饭店 restaurant, 商店 shop,
    办公室 office, 博物馆 museum
Surface/NOUN: 桌子 table, 椅子 chair, 床 bed, 书架 shelf
Box/NOUN: 箱子 box, 书包 bag, 柜子 cupboard
Past/NOUN: 昨天 yesterday, 去年 last/ADJ+year, 上周 last/ADJ+week, 前天 two/NUM+days+ago/ADV
Future/NOUN: 明天 tomorrow, 明年 next/ADJ+year, 下周 next/ADJ+week, 今晚 tonight
Daily/NOUN: 每天 every/DET+day, 每周 every/DET+week, 早上 in/ADP+the/DET+morning,
    晚上 in/ADP+the/DET+evening
Degree/ADV: 很 very, 非常 extremely
Compare/ADJ: 高 taller, 忙 busier, 快 faster, 年轻 younger
Join/CCONJ: 但是 but, 而且 and
"""

HELPERS = {
    "be": {"i": "am", "you": "are", "he": "is", "they": "are"},
    "do": {"i": "do", "you": "do", "he": "does", "they": "do"},
    "have": {"i": "have", "you": "have", "he": "has", "they": "have"},
    "want": {"i": "want", "you": "want", "he": "wants", "they": "want"},
    "like": {"i": "like", "you": "like", "he": "likes", "they": "like"},
}

# Words of a rule that translate each other. 的, 吗, 了, 把, the, do, to, that have no counterpart.
COUNTERPARTS = """
我 i  和 and  ， ,  所以 so  因为 because  虽然 although  如果 if  时候 when  是 be  不 not  没 not
没有 not  没有 have  有 have  会 will  想 want  喜欢 like  在 in  上 on  里 in  比 than  放 put
这 this  那 that  这些 these  那些 those  一 a  谁 who  什么 what  杯 cup  杯 cups
"""

# The part of speech of each word of a rule, unless the rule says another: 了/PART. As in UD's
# guidelines for Chinese, 了 is an auxiliary right after its verb and a particle at the end of the
# clause; 但是, 所以 and 那么 are adverbs where the clause before has a conjunction; 上 and 里 after
# a noun are adpositions; a measure word is a noun.
TAGS = """
ADP: 在 比 把 当 上 里 in on than of
ADV: 不 没 所以 但是 那么 when so
AUX: 了 会 想 是 be is are do did will
CCONJ: 和 and
DET: 这 那 这些 那些 this these those the a
NOUN: 杯 时候 cup cups
NUM: 一
PART: 的 吗 not to
PRON: 我 谁 什么 i who what that
PUNCT: ， , ?
SCONJ: 因为 虽然 如果 because although if
VERB: 有 没有 喜欢 放 have like want put
"""

# symbol [weight]: Chinese | English
#
# Name.form asks for a form of what Name grows into; .* hands on the form that was asked of the
# rule itself. In Chinese, Name.measure is the measure word of the noun in which Name ends.
# Twins in a rule are told apart by a digit. What is said before the verb in Chinese and after it
# in English, what stands before 的, and the clauses of 因为, 虽然, 如果 and 当 trade places.
RULES = """
Sentence 5: Story | Story
Sentence 1: Question | Question
Story 4: Unit | Unit
Story 1: Unit ， Join Story | Unit , Join Story
Unit 6: Clause | Clause
Unit 1: Clause1 ， 所以 Clause2 | Clause1 , so Clause2
Unit 1: 因为 Clause1 ， 所以 Clause2 | Clause2 because Clause1
Unit 1: 虽然 Clause1 ， 但是 Clause2 | Clause2 although Clause1
Unit 1: 如果 Fact1 ， 那么 Fact2 | Fact2 if Fact1
Unit 1: 当 Who_{who} Pastime 的 时候 ， Fact | Fact when Who_{who} Pastime.{who}
Unit 1: 当 Who_{who} 在 Place Pastime 的 时候 ， Fact
    | Fact when Who_{who} Pastime.{who} in Place

Clause 12: Subject_{who} Predicate | Subject_{who} Predicate.{who}
Clause 1: Subject_{who} Feel_person Other_{who} | Subject_{who} Feel_person.{who} Other_{who}
Clause 0.5: Subject_{who} Say Clause | Subject_{who} Say.{who} that/SCONJ Clause
Clause 1: One_{counted} Degree Quality_{counted} | One_{counted} is Degree Quality_{counted}
Clause 1: One_{counted} 不 Quality_{counted} | One_{counted} is not Quality_{counted}
Clause 1: Many_{counted} Degree Quality_{counted} | Many_{counted} are Degree Quality_{counted}
Clause 1: Subject_{who} 比 Person Compare | Subject_{who} be.{who} Compare than Person
Clause 0.2: Subject_i 是 Noun_person | Subject_i be.i a Noun_person.one
Clause 0.4: Subject_he 是 Noun_person | Subject_he be.he a Noun_person.one
Clause 0.4: Subject_they 是 Noun_person | Subject_they be.they Noun_person.many
Clause 0.4: Subject_he 是 一 Core_person.measure Core_person | Subject_he be.he a Core_person.one
Fact 1: Who_{who} Present | Who_{who} Present.{who}
Predicate 5: Simple | Simple.*
Predicate 1: Moved | Moved.*

Present 3: Feel_{kind} Object_{kind} | Feel_{kind}.* Object_{kind}
Present 1: 不 Feel_{kind} Object_{kind} | do.* not Feel_{kind}.base Object_{kind}
Present 0.5: Pastime | Pastime.*
Present 2: Daily Pastime | Pastime.* Daily
Present 2: 在 Place Pastime | Pastime.* in Place
Present 2: Daily 在 Place Pastime | Pastime.* in Place Daily
Present 0.5: 不 Pastime | do.* not Pastime.base
Present 1: 喜欢 Pastime | like.* to Pastime.base
Present 1: 想 Act | want.* to Act.base
Present 1: 不 想 Act | do.* not want to Act.base
Present 1: Daily Move Place | Move.* Place Daily
Present 1: 有 Few_{had} | have.* Few_{had}
Present 1: 没有 Noun_{had} | do.* not have Noun_{had}.many
Simple 3: Present | Present.*
Simple 1: Verb_{taken} 了 Some_{taken} | Verb_{taken}.past Some_{taken}
Simple 1: Past Verb_{taken} 了 Some_{taken} | Verb_{taken}.past Some_{taken} Past
Simple 1: 在 Place Verb_{taken} 了 Some_{taken} | Verb_{taken}.past Some_{taken} in Place
Simple 1: Past 在 Place Verb_{taken} 了 Some_{taken}
    | Verb_{taken}.past Some_{taken} in Place Past
Simple 1: Past Pastime | Pastime.past Past
Simple 1: Past 在 Place Pastime | Pastime.past in Place Past
Simple 1: Past Move 了 Place | Move.past Place Past
Simple 1: Past 没 Undone | did not Undone.base Past
Simple 1: 没 在 Place Pastime | did not Pastime.base in Place
Simple 1: Future 会 Act | will Act.base Future
Simple 1: Future 不 会 Act | will not Act.base Future
Simple 1: Future 会 在 Place Pastime | will Pastime.base in Place Future
Pastime 1: Alone | Alone.*
Pastime 3: Verb_{pastime} Noun_{pastime} | Verb_{pastime}.* Noun_{pastime}.many
Act 2: Pastime | Pastime.*
Act 2: Verb_{taken} Some_{taken} | Verb_{taken}.* Some_{taken}
Act 1: Move Place | Move.* Place
Undone 1: Pastime | Pastime.*
Undone 1: Verb_{counted} One_{counted} | Verb_{counted}.* One_{counted}
Undone 1: Move Place | Move.* Place

Moved 1: 把 The_{owned} Change_{owned} 了 | Change_{owned}.past The_{owned}
Moved 1: Past 把 The_{owned} Change_{owned} 了 | Change_{owned}.past The_{owned} Past
Moved 1: Past 没 把 The_{owned} Change_{owned} | did not Change_{owned}.base The_{owned} Past
Moved 1: Future 会 把 The_{owned} Change_{owned} | will Change_{owned}.base The_{owned} Future
Moved 1: 把 The_{portable} 放 在 Spot 了/PART | put The_{portable} Spot
Moved 1: Past 把 The_{portable} 放 在 Spot 了/PART | put The_{portable} Spot Past
Moved 1: Future 会 把 The_{portable} 放 在 Spot | will put The_{portable} Spot Future
Moved 1: 把 The_{owned} Hand Person 了/PART | Hand.past The_{owned} to/ADP Person
Moved 1: Future 会 把 The_{owned} Hand Person | will Hand.base The_{owned} to/ADP Person Future

Question 2: Subject_{asked} Feel_{kind} Object_{kind} 吗
    | do.{asked} Subject_{asked} Feel_{kind}.base Object_{kind} ?
Question 1: Subject_{asked} 想 Act 吗 | do.{asked} Subject_{asked} want to Act.base ?
Question 1: Subject_{asked} Daily Pastime 吗 | do.{asked} Subject_{asked} Pastime.base Daily ?
Question 2: Subject_{asked} Past Verb_{taken} 了 Some_{taken} 吗
    | did Subject_{asked} Verb_{taken}.base Some_{taken} Past ?
Question 1: Subject_{asked} Future 会 Act 吗 | will Subject_{asked} Act.base Future ?
Question 1: Subject_{asked} Say Clause 吗 | do.{asked} Subject_{asked} Say.base that/SCONJ Clause ?
Question 1: One_{counted} Quality_{counted} 吗 | is One_{counted} Quality_{counted} ?
Question 1: 谁 Simple | who Simple.he ?
Question 1: Subject_{asked} 喜欢 什么 | what do.{asked} Subject_{asked} like ?
Question 1: Subject_{asked} Past 在 Place Verb_food 了 什么
    | what did Subject_{asked} Verb_food.base in Place Past ?

Subject_{who} 3: Who_{who} | Who_{who}
Subject_he 3: One_person | One_person
Subject_they 3: Many_person | Many_person
Who_i 1: I | I
Who_you 1: You | You
Who_he 2: He | He
Who_he 2: Name | Name
Who_he 1: Poss Kin | Poss Kin
Who_they 3: They | They
Who_they 1: Boy 和 Girl | Boy and Girl
Who_they 1: 我 和 Name | Name and i
Name 1: Boy | Boy
Name 1: Girl | Girl
Person 1: Third | Third
Person 2: Name | Name
Person 2: Poss Kin | Poss Kin
Person 2: One_person | One_person
Place 2: City | City
Place 2: Venue | the Venue
Place 1: City 的 Venue | the Venue in City
Spot 1: Surface 上 | on the Surface
Spot 1: Box 里 | in the Box

Quality_{counted} 1: Short_{counted} | Short_{counted}
Quality_{counted} 1: Long_{counted} | Long_{counted}
Core_{counted} 3: Noun_{counted} | Noun_{counted}.*
Core_{counted} 1: Short_{counted} Noun_{counted} | Short_{counted} Noun_{counted}.*
Core_{counted} 1: Long_{counted} 的 Noun_{counted} | Long_{counted} Noun_{counted}.*
One_{counted} 2: 这 Core_{counted}.measure Core_{counted} | this Core_{counted}.one
One_{counted} 2: 那 Core_{counted}.measure Core_{counted} | that/DET Core_{counted}.one
One_{counted} 1: Poss 的 Core_{counted} | Poss Core_{counted}.one
One_{counted} 3: Gap_{counted} 的 Core_{counted} | the Core_{counted}.one that Gap_{counted}
One_{portable} 1: Spot 的 Core_{portable} | the Core_{portable}.one Spot
One_person 1: Place 的 Core_person | the Core_person.one in Place
One_person 3: Simple 的 Core_person | the Core_person.one who Simple.he
Many_{counted} 1: 这些 Core_{counted} | these Core_{counted}.many
Many_{counted} 1: 那些 Core_{counted} | those Core_{counted}.many
Many_{counted} 2: Number Core_{counted}.measure Core_{counted} | Number Core_{counted}.many
Many_{counted} 1: Gap_{counted} 的 Number Core_{counted}.measure Core_{counted}
    | the Number Core_{counted}.many that Gap_{counted}
Many_person 1: Simple 的 Number Core_person.measure Core_person
    | the Number Core_person.many who Simple.they
Few_{had} 1: 一 Core_{had}.measure Core_{had} | a Core_{had}.one
Few_{had} 1: Number Core_{had}.measure Core_{had} | Number Core_{had}.many
Some_{counted} 2: One_{counted} | One_{counted}
Some_{counted} 2: Many_{counted} | Many_{counted}
Some_{counted} 1: 一 Core_{counted}.measure Core_{counted} | a Core_{counted}.one
Some_drink 1: 一 杯 Noun_drink | a cup of Noun_drink
Some_drink 2: Number 杯 Noun_drink | Number cups of Noun_drink
Object_{counted} 4: Some_{counted} | Some_{counted}
Object_{counted} 1: Core_{counted} | Core_{counted}.many
Object_{uncounted} 1: Noun_{uncounted} | Noun_{uncounted}
Object_drink 1: Some_drink | Some_drink
Object_person 1: Name | Name
Object_person 1: Poss Kin | Poss Kin
The_{handled} 1: Noun_{handled} | the Noun_{handled}.one
The_{handled} 2: One_{handled} | One_{handled}

Gap_{counted} 2: Who_{who} Feel_{counted} | Who_{who} Feel_{counted}.{who}
Gap_{counted} 1: Who_{who} 不 Feel_{counted} | Who_{who} do.{who} not Feel_{counted}.base
Gap_{counted} 1: Who_{who} 想 Verb_{counted} | Who_{who} want.{who} to Verb_{counted}.base
Gap_{counted} 1: Who_{who} Verb_{counted} | Who_{who} Verb_{counted}.past
Gap_{counted} 1: Who_{who} Past Verb_{counted} | Who_{who} Verb_{counted}.past Past
Gap_{counted} 1: Who_{who} 在 Place Verb_{counted} | Who_{who} Verb_{counted}.past in Place
Gap_{counted} 1: Who_{who} Past 在 Place Verb_{counted}
    | Who_{who} Verb_{counted}.past in Place Past
"""
