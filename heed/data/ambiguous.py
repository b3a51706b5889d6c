"""Words and rules that give one surface several parts of speech; drawn for tagging alone.

    他 在/VERB 北京          he is in beijing
    他 在/ADP 北京 工作       he works in beijing
    我 只/ADV 喜欢 一 只/NOUN 猫      i only like a cat

They stand beside the tables of `lexicon.py`, whose translations must not change with them. With
both, 20 Chinese and 34 English words have several parts of speech (`grammar.ambiguous` lists them),
`that` even three; a sentence always has one reading.
"""

NOUNS = """
person: 厨师 位 cook cooks, 保安 个 guard guards, 翻译 位 translator translators
text: 计划 份 plan plans
film: 话剧 场 play plays, 舞蹈 场 dance dances, 表演 场 show shows
thing: 手表 块 watch watches, 雨伞 把 umbrella umbrellas
animal: 鱼 条 fish fish, 苍蝇 只 fly flies
"""

DEEDS = """
翻译 translate translates translated: text
表演 perform performs performed: film
拍 film films filmed: person animal
清洗 clean cleans cleaned: clothes thing
"""
FEELINGS = """
会 know knows knew: language
想 miss misses missed: person land
照顾 nurse nurses nursed: person animal
保护 guard guards guarded: person animal thing
联系 phone phones phoned: person
"""
CHANGES = ""
VERBS = """
Alone: 钓鱼 fish fishes fished, 飞 fly flies flew,
    运动 do+sports/NOUN does+sports/NOUN did+sports/NOUN
Say: 报告 report reports reported
"""

SHORT = ""
LONG = """
干净 clean: clothes thing
难 hard: text
努力 hard-working: person
"""
WORDS = ""

RULES = """
Clause 1: 这/PRON 是 一 Core_{counted}.measure Core_{counted} | this/PRON is a Core_{counted}.one
Clause 1: 那/PRON 是 一 Core_{counted}.measure Core_{counted} | that/PRON is a Core_{counted}.one
Clause 1: Subject_{who} 像 Person | Subject_{who} be.{who} like/ADP Person
Clause 0.5: Poss 的 工作/NOUN Degree Quality_text | Poss work/NOUN is Degree Quality_text
Pastime 0.4: 努力/ADV Alone | Alone.* hard/ADV
Present 1: 在/VERB Place | be.* in Place
Present 1: 有 Number 份 工作/NOUN | have.* Number jobs
Present 1: 喜欢 Poss 的 工作/NOUN | like.* Poss work/NOUN
Present 1: 计划/VERB Act | plan.* to Act.base
Present 1: 只/ADV Feel_{kind} Object_{kind} | only Feel_{kind}.* Object_{kind}
Present 1: 给/ADP Person Pastime | Pastime.* for Person
Present 1: 用/ADP 手机 Verb_film Noun_film | Verb_film.* Noun_film.many on the phone/NOUN
Present 2: Daily Verb_{taken} Some_{taken} | Verb_{taken}.* Some_{taken} Daily
Present 1: Daily 和/ADP Person Pastime | Pastime.* with Person Daily
Simple 1: 给/VERB 了 Person 一 Core_{portable}.measure Core_{portable}
    | gave Person a Core_{portable}.one
Simple 1: Past 没有/AUX Undone | did not Undone.base Past
Question 1: Subject_{asked} 喜欢 什么/DET Noun_{counted}
    | what/DET Noun_{counted}.many do.{asked} Subject_{asked} like ?
"""

TAGS = """
ADP: for with
ADV: only
NOUN: 份 手机 jobs
VERB: 像 gave plan
"""

HELPERS = {"plan": {"i": "plan", "you": "plan", "he": "plans", "they": "plan"}}
