r"""Words of languages other than English that change a number, make it doubtful or join it to
another one: number words, scales, comparisons, doubts, negations and connectives.

Each language of `languages` has a row here, because that module treats a word after a number as
harmless unless it is listed here: `30 конфет` is 30, `30 тысяч` and `30 или` are not.
"""

import re

from envs.math.parsing.vocabulary import CHANGING, COMPUTED, LINKS, UNITS, words

CHANGING_BY_LANGUAGE = {
    "ar": "أو او تقريبا تقريبًا حوالي نحو ليس ليست لا ألف آلاف الف مليون ملايين مليار مئة مائة "
    "مئات ربما قد لعل أكثر أقل لكن نصف ربع دزينة عشرات غير إذا من_المحتمل إلى بين خطأ ضعف",
    "bn": "প্রায় বা অথবা কিংবা না নয় নেই হাজার লক্ষ লাখ কোটি শত শো ডজন সম্ভবত হয়তো বেশি কম "
    "কিন্তু তবে যদি গুণ অর্ধেক আধা থেকে ভুল",
    "de": "viel wenig zuviel zuwenig potenz inkorrekt unrichtig fehler fehlerhaft unsicher "
    "zweifelhaft glaube denke schätze oder tausend million millionen milliarde milliarden hundert "
    "hunderte dutzend tsd mio mrd halb halbe halben hälfte drittel viertel paar paare kein keine "
    "keinen nicht nie nein ohne mehr weniger mindestens höchstens minimum maximum mal fach "
    "ungefähr etwa fast circa zirka rund knapp gut beinahe vielleicht vermutlich wahrscheinlich "
    "eventuell könnte niemals möglicherweise wohl aber sondern sonst falls wenn außer falsch "
    "zwischen bis über unter quadrat kubik wurzel hoch doppelt doppelte doppelten dreifache zwei "
    "drei vier fünf sechs sieben acht neun zehn elf zwölf zwanzig summe produkt differenz quotient "
    "plus minus geteilt hundertstel zehntel als zuerst zunächst",
    "el": "ή είτε περίπου ίσως μάλλον όχι δεν μη χιλιάδες χίλια εκατό εκατοντάδες εκατομμύρια "
    "δισεκατομμύρια μισό μισά σχεδόν αλλά αν εάν περισσότερα περισσότερο λιγότερα λιγότερο φορές "
    "πιθανώς πιθανόν ντουζίνα δωδεκάδα μεταξύ έως μέχρι λάθος δύο τρία τέσσερα πέντε έξι επτά οκτώ "
    "εννέα δέκα ζεύγη",
    "es": "demasiado demasiados potencia incorrecto errónea erróneo equivocada equivocado dudo "
    "supongo o u ó mil miles millón millones mm docena docenas cien ciento cientos centenar "
    "centenares medio media mitad tercio tercios cuarto cuartos pares no ni nunca jamás sin más "
    "menos mayor menor veces vez casi aproximadamente cerca alrededor unos unas quizá quizás "
    "quizas acaso talvez puede podría probablemente posiblemente creo parece pero sino si salvo "
    "excepto falso falsa incorrecto incorrecta entre hasta mínimo máximo cuadrado cuadrada cubo "
    "raíz doble triple factorial dos tres cuatro cinco seis siete ocho nueve diez once doce veinte "
    "treinta suma producto diferencia cociente dividido por_lo_menos primero décimos centésimos",
    "fr": "trop puissance incorrect incorrecte erronée erroné pense crois dirais ou mille milliers "
    "million millions milliard milliards centaine centaines cent cents douzaine douzaines dizaine "
    "dizaines moitié demi demie tiers quart quarts paire paires non ni pas ne jamais sans plus "
    "moins fois presque environ autour vers près peut-être peut pourrait probablement sans_doute "
    "sûrement mais si sauf faux fausse entre jusqu'à minimum maximum carré carrée cube racine "
    "double triple factorielle deux trois quatre cinq six sept huit neuf dix onze douze vingt "
    "trente somme différence quotient divisé d'abord dixièmes centièmes",
    "hi": "लगभग करीब क़रीब शायद या अथवा नहीं न हज़ार हजार लाख करोड़ अरब सौ दर्जन अधिक ज़्यादा "
    "ज्यादा कम आधा आधे डेढ़ ढाई गुना परंतु परन्तु लेकिन मगर अगर यदि संभवतः गलत ग़लत बीच दो तीन चार "
    "पांच पाँच छह सात आठ नौ दस",
    "id": "sepertinya kayaknya keliru kira atau sekitar kira-kira mungkin barangkali hampir bukan "
    "tidak tak tanpa ribu ratus juta miliar milyar lusin puluh kodi pasang lebih kurang kali "
    "setengah separuh tapi tetapi namun jika kalau bila kecuali antara sampai hingga minimal "
    "maksimal dua tiga empat lima enam tujuh delapan sembilan sepuluh salah daripada",
    "it": "troppo troppi potenza alla_seconda errata sbagliata scorretta scorretto penso suppongo "
    "dubito o oppure mila mille milione milioni miliardo miliardi dozzina dozzine cento centinaia "
    "decine mezzo mezza metà terzo terzi quarto quarti paio paia coppie no non né mai senza più "
    "meno volte volta quasi circa forse probabilmente può potrebbe credo sembra ma però bensì se "
    "salvo tranne falso errato sbagliato tra fra fino minimo massimo almeno quadrato quadrata cubo "
    "radice doppio triplo fattoriale due tre quattro cinque sei sette otto nove dieci undici "
    "dodici venti trenta somma prodotto differenza quoziente diviso prima decimi",
    "nl": "veel weinig foutief onjuist denk vermoed of ongeveer misschien circa bijna rond niet "
    "geen nooit nee zonder duizend duizenden honderd honderden miljoen miljard dozijn half halve "
    "helft derde kwart paar meer minder dan minstens hoogstens minimaal maximaal keer maal maar "
    "als tenzij behalve waarschijnlijk mogelijk vermoedelijk fout tussen tot kwadraat wortel "
    "dubbele twee drie vier vijf zes zeven acht negen tien elf twaalf som product verschil",
    "pl": "dużo potęga błędny błędne myślę sądzę niepewne lub albo czy około prawie niemal ponad "
    "nie nigdy bez tysiąc tysiące tysięcy tys milion miliony milionów mln mld tuzin tuziny tuzinów "
    "sto setki setek dziesiątki dziesiątek pół połowa połowę ćwierć pary może chyba prawdopodobnie "
    "pewnie ale lecz jeśli jeżeli oprócz więcej mniej niż razy błąd błędna między najmniej "
    "najwyżej co_najmniej kwadrat pierwiastek dwa dwie trzy cztery pięć sześć siedem osiem "
    "dziewięć dziesięć suma iloczyn różnica najpierw",
    "pt": "demais potência incorreta incorreto falsa falso duvido suponho ou mil milhar milhares "
    "milhão milhões bilhão bilhões dúzia dúzias dezena dezenas cem cento centena centenas meio "
    "meia metade terço terços quarto quartos pares não nem nunca sem mais menos vezes vez quase "
    "cerca aproximadamente talvez provavelmente pode poderia acho parece mas porém se salvo exceto "
    "errado errada entre até mínimo máximo quadrado cubo raiz dobro triplo fatorial dois duas três "
    "quatro cinco seis sete oito nove dez onze doze vinte trinta soma produto diferença quociente "
    "primeiro décimos centésimos",
    "ru": "слишком лишних степени степень неверный неверное неверна неправильный ошибочно вроде "
    "похоже сомневаюсь или либо тысяч тысяча тысячи тыс миллион миллиона миллионов млн миллиард "
    "миллиарда миллиардов млрд дюжина дюжины дюжин сто сотня сотни сотен десяток десятка десятков "
    "пол половина половины полтора треть трети четверть четверти пара пары пар нет не ни никогда "
    "без больше более меньше менее раз раза около примерно приблизительно почти порядка свыше чуть "
    "возможно наверное наверно вероятно может думаю кажется видимо но а если кроме неверно "
    "неправильно ошибка между от до минимум максимум квадрат квадрате корень куб два две три "
    "четыре пять шесть семь восемь девять десять двадцать сумма произведение разность частное чем "
    "сначала десятых сотых удвоенное",
    "sv": "mycket upphöjt felaktigt tror gissar eller cirka ungefär kanske nästan runt inte ej "
    "aldrig utan tusen tusental hundra hundratals miljon miljoner miljard miljarder dussin tiotal "
    "halv halva hälften tredjedel fjärdedel mer mindre fler färre än minst högst om men gånger "
    "troligen förmodligen möjligen fel mellan till_och_med kvadrat roten dubbla två tre fyra fem "
    "sex sju åtta nio tio elva tolv summan",
    "sw": "karibu takriban si sio siyo hapana bila elfu mia milioni bilioni labda huenda pengine "
    "zaidi chini lakini nusu robo dazeni jozi kama ila mara kati hadi mbili tatu nne tano sita "
    "saba nane tisa kumi",
    "te": "సుమారు దాదాపు లేదా కాదు లేదు వేలు వేల వెయ్యి లక్ష లక్షలు కోటి కోట్లు వంద వందలు డజన్ "
    "డజను బహుశా కంటే ఎక్కువ తక్కువ కానీ అయితే సగం రెట్లు తప్పు",
    "tr": "sanırım herhalde hatalı veya ya yahut yaklaşık yüz bin milyon milyar düzine belki "
    "muhtemelen galiba değil hayır yok fazla az çok kat katı yarım yarısı buçuk çeyrek ama fakat "
    "eğer hariç civarı civarında kadar arası arasında yanlış çift iki üç dört beş altı yedi sekiz "
    "dokuz kırk elli kare kök neredeyse",
    "uk": "забагато степені неправильна хибно напевно думаю або чи приблизно близько майже не ні "
    "ніколи без тисяч тисячі тисяча тис мільйон мільйони мільйонів млн мільярд мільярди мільярдів "
    "млрд сто сотні сотень дюжина дюжини десяток десятки десятків пів половина половини третина "
    "чверть пара пари пар можливо мабуть ймовірно може здається більше менше ніж раз рази разів "
    "якщо але крім неправильно помилка між від до квадрат корінь два дві три чотири п'ять шість "
    "сім вісім дев'ять десять",
    "vi": "quá thừa mũ nghĩ đoán hoặc không chưa chẳng phải khoảng chừng gần hơn kém nghìn ngàn "
    "triệu tỷ tỉ trăm chục tá mươi rưỡi nửa đôi cặp hai ba bốn sáu bảy tám chín mười có_thể "
    "chắc_là chắc_chắn lẽ nhưng nếu trừ ít nhiều lần sai đến tới giữa tối_đa tối_thiểu ước_chừng "
    "bình_phương",
}
"""By language (ISO 639-1); an underscore is a space."""
CHANGING_FOREIGN_WORDS = words(" ".join(CHANGING_BY_LANGUAGE.values()))
ONLY_FOREIGN_WORDS = CHANGING_FOREIGN_WORDS - (
    CHANGING
    | COMPUTED
    | LINKS
    | UNITS.keys()
    | words("men fast falls due fin gut halve doze mia mai mal kat sin tot mil u o ni si")
)
"""Listed words that are not English words."""
LETTERS = re.compile(r"[^\W\d_]+")
PHRASES = re.compile(
    "|".join(
        re.escape(word.replace("_", " ")) for word in sorted(CHANGING_FOREIGN_WORDS) if "_" in word
    )
)
CHANGING_CHARACTERS = frozenset(
    "万萬億亿兆千百十多余餘几数半倍成约約左右以上下不非没無无否或者和与及还還又至到～点點加减減乘除可能吗嗎？错錯但如若ないかと前後"
    "概许許估猜近超弱强強未满滿差之ほょ"
)
"""Characters that change a number, or join it to another, in Chinese and Japanese."""
CHANGING_PARTS = re.compile(
    "平方|立方|次方|根号|ませ|약|정도|이상|이하|초과|미만|또는|혹은|아니|아닌|아마|쯤|가량|넘|천|백|십|배|절반|같|모르"
    "|ประมาณ|ราว|หรือ|ไม่|พัน|หมื่น|แสน|ล้าน|ร้อย|สิบ|โหล|คู่|อาจ|น่าจะ|มากกว่า|น้อยกว่า|กว่า|เกือบ"
    "|แต่|ถ้า|เท่า|ครึ่ง|ผิด"
)
"""Parts of words that do so in Chinese, Japanese, Korean and Thai."""


def has_foreign_word(text: str) -> bool:
    """Whether `text` has a word that changes a number in another language and is not an English
    word.
    """
    return not ONLY_FOREIGN_WORDS.isdisjoint(map(str.lower, LETTERS.findall(text)))
