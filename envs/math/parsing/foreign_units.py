"""Units after a number in languages other than English."""

FOREIGN_UNITS = {
    "cent": "centavo centavos centime centimes céntimo céntimos centesimi kopeken копеек копейки "
    "美分 セント 센트",
    "dollar": "dólar dólares dollari доллар доллара долларов долара доларів 美元 ドル 달러 dolari dolar "
    "dollaria डॉलर ডলার డాలర్లు ดอลลาร์ đô_la",
    "euro": "евро 欧元 歐元 ユーロ 유로",
    "yen": "元 块钱 人民币 円 日元",
    "rupee": "रुपये টাকা రూపాయలు",
    "second": "segundo segundos seconde secondes sekunde sekunden secondi secondo секунд секунды "
    "秒 초",
    "minute": "minuto minutos minuten minuti минут минуты минута 分钟 分鐘 分間 분 मिनट মিনিট นาที phút",
    "hour": "hora horas heure heures stunde stunden ore ora час часа часов 小时 小時 時間 시간 घंटे ঘণ্টা "
    "ชั่วโมง giờ",
    "day": "día días jour jours tag tage tagen giorno giorni dia dias день дня дней 天 日間 일 दिन "
    "দিন วัน ngày siku",
    "week": "semana semanas semaine semaines woche wochen settimane неделя недели недель 周 星期 週間 "
    "주 सप्ताह",
    "month": "mes meses mois monat monate monaten mesi месяц месяца месяцев 个月 個月 ヶ月 か月 개월 महीने",
    "year": "año años ans année années jahr jahre jahren anni год года лет 年 岁 歲 歳 년 살 साल বছর ปี "
    "tuổi năm",
    "centimetre": "centímetro centímetros centimètre centimètres zentimeter centimetri "
    "сантиметр сантиметра сантиметров см 厘米 センチメートル 센티미터",
    "square centimetres": "平方厘米 centímetros_cuadrados centimètres_carrés quadratzentimeter",
    "square metres": "平方米 metros_cuadrados mètres_carrés quadratmeter",
    "roubles": "рубль рубля рублей руб",
    "metre": "metro metros mètre mètres metri метр метра метров м 米 メートル 미터 मीटर মিটার เมตร mét",
    "kilometre": "kilómetro kilómetros kilomètre kilomètres chilometri quilômetros километр "
    "километра километров км 公里 千米 キロメートル キロ 킬로미터",
    "mile": "milla millas meile meilen miglia milhas мили миль 英里 マイル 마일",
    "gram": "gramo gramos gramme grammes gramm grammi gramas грамм грамма граммов 克 グラム 그램",
    "kilogram": "kilogramo kilogramos kilogramm chili quilos килограмм килограмма килограммов кг "
    "千克 公斤 キログラム 킬로그램",
    "litre": "litro litros liter litri литр литра литров 升 リットル 리터",
    "degree": "grado grados degré degrés grad gradi graus градус градуса градусов 度 도",
    "percent": "por_ciento pour_cent prozent percento процент процента процентов",
    "people": "persona personas personne personnes personen persone pessoas человек человека "
    "людей 人 名 명 người watu คน",
    "pages": "página páginas seiten seite pagine страниц страницы ページ 페이지 쪽",
    "pieces": "pieza piezas pièces stück pezzi peças штук штуки",
    "apples": "manzana manzanas pomme pommes apfel äpfel mele maçãs яблоко яблока яблок 苹果 蘋果 リンゴ "
    "りんご 사과",
    "eggs": "huevo huevos œuf œufs oeufs ei eier uova ovos яйцо яйца яиц 鸡蛋 雞蛋 卵 달걀 계란",
    "books": "libro libros livre livres buch bücher libri livros книга книги книг 书 書 책",
}
"""Units and a few counted things of other languages, by their English name; an underscore is a
space.
"""
