"""Fact tables that the demo corpus is generated from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Country:
    """One country with the few facts that the demo model is shown about it."""

    name: str
    capital: str
    continent: str
    language: str

    @property
    def phrase(self) -> str:
        """The name as it reads inside a sentence, with its article where it has one."""
        return f"the {self.name}" if self.name in WITH_ARTICLE else self.name


WITH_ARTICLE = frozenset(
    """United Kingdom|United States|Netherlands|Philippines|Czech Republic|Dominican Republic|Bahamas|Maldives
|Gambia|Comoros|Solomon Islands|Marshall Islands|United Arab Emirates|Central African Republic
|Democratic Republic of the Congo|Republic of the Congo|Seychelles""".replace("\n", "").split("|")
)

# name|capital|language, the best known countries first; a line that starts with '#' names the continent.
_TABLE = """
#Europe
France|Paris|French
Germany|Berlin|German
Italy|Rome|Italian
Spain|Madrid|Spanish
United Kingdom|London|English
Portugal|Lisbon|Portuguese
Netherlands|Amsterdam|Dutch
Belgium|Brussels|Dutch
Austria|Vienna|German
Switzerland|Bern|German
Greece|Athens|Greek
Ireland|Dublin|English
Sweden|Stockholm|Swedish
Norway|Oslo|Norwegian
Denmark|Copenhagen|Danish
Finland|Helsinki|Finnish
Poland|Warsaw|Polish
Hungary|Budapest|Hungarian
Czech Republic|Prague|Czech
Russia|Moscow|Russian
Ukraine|Kyiv|Ukrainian
Iceland|Reykjavik|Icelandic
Romania|Bucharest|Romanian
Bulgaria|Sofia|Bulgarian
Croatia|Zagreb|Croatian
Serbia|Belgrade|Serbian
Slovakia|Bratislava|Slovak
Slovenia|Ljubljana|Slovene
Estonia|Tallinn|Estonian
Latvia|Riga|Latvian
Lithuania|Vilnius|Lithuanian
Albania|Tirana|Albanian
Belarus|Minsk|Belarusian
Bosnia and Herzegovina|Sarajevo|Bosnian
Montenegro|Podgorica|Montenegrin
North Macedonia|Skopje|Macedonian
Moldova|Chisinau|Romanian
Malta|Valletta|Maltese
Luxembourg|Luxembourg City|Luxembourgish
Monaco|Monaco|French
Andorra|Andorra la Vella|Catalan
Liechtenstein|Vaduz|German
San Marino|San Marino|Italian
Cyprus|Nicosia|Greek
#Asia
Japan|Tokyo|Japanese
China|Beijing|Chinese
India|New Delhi|Hindi
South Korea|Seoul|Korean
Thailand|Bangkok|Thai
Vietnam|Hanoi|Vietnamese
Indonesia|Jakarta|Indonesian
Turkey|Ankara|Turkish
Iran|Tehran|Persian
Iraq|Baghdad|Arabic
Saudi Arabia|Riyadh|Arabic
Philippines|Manila|Filipino
Malaysia|Kuala Lumpur|Malay
Singapore|Singapore|English
Pakistan|Islamabad|Urdu
Bangladesh|Dhaka|Bengali
Nepal|Kathmandu|Nepali
Mongolia|Ulaanbaatar|Mongolian
North Korea|Pyongyang|Korean
United Arab Emirates|Abu Dhabi|Arabic
Qatar|Doha|Arabic
Kuwait|Kuwait City|Arabic
Jordan|Amman|Arabic
Lebanon|Beirut|Arabic
Syria|Damascus|Arabic
Oman|Muscat|Arabic
Yemen|Sanaa|Arabic
Bahrain|Manama|Arabic
Afghanistan|Kabul|Pashto
Kazakhstan|Astana|Kazakh
Uzbekistan|Tashkent|Uzbek
Kyrgyzstan|Bishkek|Kyrgyz
Tajikistan|Dushanbe|Tajik
Turkmenistan|Ashgabat|Turkmen
Georgia|Tbilisi|Georgian
Armenia|Yerevan|Armenian
Azerbaijan|Baku|Azerbaijani
Cambodia|Phnom Penh|Khmer
Laos|Vientiane|Lao
Myanmar|Naypyidaw|Burmese
Bhutan|Thimphu|Dzongkha
Maldives|Male|Dhivehi
Brunei|Bandar Seri Begawan|Malay
East Timor|Dili|Tetum
#Africa
Egypt|Cairo|Arabic
Kenya|Nairobi|Swahili
Nigeria|Abuja|English
South Africa|Pretoria|Zulu
Morocco|Rabat|Arabic
Ethiopia|Addis Ababa|Amharic
Ghana|Accra|English
Algeria|Algiers|Arabic
Tunisia|Tunis|Arabic
Libya|Tripoli|Arabic
Sudan|Khartoum|Arabic
South Sudan|Juba|English
Tanzania|Dodoma|Swahili
Uganda|Kampala|English
Rwanda|Kigali|Kinyarwanda
Burundi|Gitega|Kirundi
Senegal|Dakar|French
Mali|Bamako|French
Niger|Niamey|French
Chad|N'Djamena|French
Cameroon|Yaounde|French
Gabon|Libreville|French
Angola|Luanda|Portuguese
Zambia|Lusaka|English
Zimbabwe|Harare|Shona
Mozambique|Maputo|Portuguese
Namibia|Windhoek|English
Botswana|Gaborone|Tswana
Lesotho|Maseru|Sotho
Malawi|Lilongwe|Chichewa
Madagascar|Antananarivo|Malagasy
Mauritius|Port Louis|English
Seychelles|Victoria|Creole
Somalia|Mogadishu|Somali
Djibouti|Djibouti|French
Eritrea|Asmara|Tigrinya
Togo|Lome|French
Benin|Porto-Novo|French
Burkina Faso|Ouagadougou|French
Ivory Coast|Yamoussoukro|French
Liberia|Monrovia|English
Sierra Leone|Freetown|English
Guinea|Conakry|French
Guinea-Bissau|Bissau|Portuguese
Gambia|Banjul|English
Mauritania|Nouakchott|Arabic
Cape Verde|Praia|Portuguese
Equatorial Guinea|Malabo|Spanish
Central African Republic|Bangui|French
Democratic Republic of the Congo|Kinshasa|French
Republic of the Congo|Brazzaville|French
Comoros|Moroni|Comorian
Eswatini|Mbabane|Swazi
#North America
United States|Washington, D.C.|English
Canada|Ottawa|English
Mexico|Mexico City|Spanish
Cuba|Havana|Spanish
Jamaica|Kingston|English
Haiti|Port-au-Prince|French
Dominican Republic|Santo Domingo|Spanish
Guatemala|Guatemala City|Spanish
Honduras|Tegucigalpa|Spanish
El Salvador|San Salvador|Spanish
Nicaragua|Managua|Spanish
Costa Rica|San José|Spanish
Panama|Panama City|Spanish
Belize|Belmopan|English
Bahamas|Nassau|English
Barbados|Bridgetown|English
Trinidad and Tobago|Port of Spain|English
Saint Lucia|Castries|English
Grenada|Saint George's|English
Dominica|Roseau|English
#South America
Brazil|Brasília|Portuguese
Argentina|Buenos Aires|Spanish
Chile|Santiago|Spanish
Peru|Lima|Spanish
Colombia|Bogotá|Spanish
Venezuela|Caracas|Spanish
Ecuador|Quito|Spanish
Bolivia|Sucre|Spanish
Paraguay|Asunción|Spanish
Uruguay|Montevideo|Spanish
Guyana|Georgetown|English
Suriname|Paramaribo|Dutch
#Oceania
Australia|Canberra|English
New Zealand|Wellington|English
Fiji|Suva|English
Papua New Guinea|Port Moresby|English
Samoa|Apia|Samoan
Tonga|Nuku'alofa|Tongan
Vanuatu|Port Vila|Bislama
Solomon Islands|Honiara|English
Marshall Islands|Majuro|Marshallese
Kiribati|Tarawa|English
"""


def _countries() -> list[Country]:
    found: list[Country] = []
    continent = ""
    for line in _TABLE.strip().splitlines():
        if line.startswith("#"):
            continent = line[1:]
            continue
        name, capital, language = line.split("|")
        found.append(Country(name, capital, continent, language))
    return found


COUNTRIES: list[Country] = _countries()

FAMOUS: list[str] = (
    "France|Germany|Italy|Spain|United Kingdom|Japan|China|India|United States|Canada|Brazil|Australia|Mexico"
    "|Russia|Egypt|South Korea|Greece|Portugal|Netherlands|Sweden|Norway|Argentina|Turkey|Thailand|Kenya"
    "|South Africa|Poland|Austria|Ireland|Switzerland|Denmark|Finland|Belgium|Vietnam|Indonesia|New Zealand|Peru"
    "|Chile|Colombia|Cuba|Hungary|Czech Republic|Iceland|Nigeria|Morocco"
).split("|")

ALIASES: dict[str, str] = {"UK": "United Kingdom", "USA": "United States", "US": "United States",
                           "Czechia": "Czech Republic", "UAE": "United Arab Emirates"}

# Rounded figures, as the model is meant to learn a shape, not a census.
CAPITAL_POPULATION: dict[str, int] = {
    "Paris": 2100000, "Berlin": 3700000, "Rome": 2800000, "Madrid": 3300000, "London": 8900000,
    "Tokyo": 14000000, "Beijing": 21900000, "New Delhi": 250000, "Washington, D.C.": 690000,
    "Ottawa": 1000000, "Brasília": 2800000, "Canberra": 460000, "Mexico City": 9200000, "Moscow": 13000000,
    "Cairo": 10000000, "Seoul": 9400000, "Athens": 640000, "Lisbon": 550000, "Amsterdam": 920000,
    "Stockholm": 980000, "Oslo": 710000, "Buenos Aires": 3100000, "Ankara": 5700000, "Bangkok": 8300000,
    "Nairobi": 4400000, "Warsaw": 1800000, "Vienna": 2000000, "Dublin": 590000, "Bern": 130000,
    "Copenhagen": 650000, "Helsinki": 660000, "Hanoi": 8000000, "Lima": 10000000, "Havana": 2100000,
    "Prague": 1300000, "Budapest": 1700000,
}

CAPITAL_KNOWN_FOR: dict[str, list[str]] = {
    "Paris": ["the Eiffel Tower", "the Louvre", "Notre-Dame", "the river Seine"],
    "Berlin": ["the Brandenburg Gate", "the Reichstag", "Museum Island", "the river Spree"],
    "Rome": ["the Colosseum", "the Roman Forum", "the Trevi Fountain", "the Pantheon"],
    "Madrid": ["the Prado Museum", "the Royal Palace", "Retiro Park", "Plaza Mayor"],
    "London": ["Big Ben", "Tower Bridge", "the British Museum", "the river Thames"],
    "Tokyo": ["the Senso-ji temple", "the Tokyo Tower", "Shibuya Crossing", "Ueno Park"],
    "Beijing": ["the Forbidden City", "the Temple of Heaven", "the Summer Palace", "Tiananmen Square"],
    "Washington, D.C.": ["the White House", "the Capitol", "the Lincoln Memorial", "the National Mall"],
    "Cairo": ["the nearby pyramids", "the Egyptian Museum", "the river Nile", "the old market"],
    "Athens": ["the Acropolis", "the Parthenon", "the Agora", "the old town"],
    "Lisbon": ["the Belém Tower", "its yellow trams", "the old town", "the river Tagus"],
    "Vienna": ["the Schönbrunn Palace", "the State Opera", "its coffee houses", "the Prater"],
    "Amsterdam": ["its canals", "the Rijksmuseum", "the Van Gogh Museum", "its bicycles"],
    "Moscow": ["the Kremlin", "Red Square", "the Bolshoi Theatre", "its metro stations"],
    "Seoul": ["the Gyeongbokgung Palace", "the N Seoul Tower", "the Han River", "its street food"],
    "Prague": ["the Charles Bridge", "the Prague Castle", "the old town square", "the river Vltava"],
}

PLANETS = ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December"]
CONTINENTS = ["Africa", "Antarctica", "Asia", "Europe", "North America", "Oceania", "South America"]

LISTS: dict[str, list[str]] = {
    "fruits": ["apple", "banana", "orange", "grape", "mango", "pear", "cherry", "peach", "lemon", "kiwi"],
    "vegetables": ["carrot", "potato", "tomato", "onion", "spinach", "broccoli", "cabbage", "pea"],
    "animals": ["cat", "dog", "horse", "elephant", "lion", "tiger", "bear", "rabbit", "monkey", "wolf"],
    "colors": ["red", "blue", "green", "yellow", "orange", "purple", "black", "white", "brown", "pink"],
    "birds": ["eagle", "owl", "sparrow", "robin", "parrot", "penguin", "crow", "swan"],
    "planets": PLANETS,
    "sports": ["football", "tennis", "basketball", "swimming", "cycling", "running", "hockey", "golf"],
    "musical instruments": ["piano", "guitar", "violin", "flute", "drums", "trumpet", "cello", "harp"],
    "countries": ["France", "Japan", "Brazil", "Egypt", "Canada", "Italy", "India", "Spain", "Kenya"],
    "cities": ["Paris", "London", "Tokyo", "Rome", "Berlin", "Madrid", "Cairo", "Vienna"],
    "programming languages": ["Python", "C", "Java", "Rust", "Go", "JavaScript", "C++", "Ruby"],
    "languages": ["English", "French", "Spanish", "German", "Chinese", "Japanese", "Arabic", "Hindi"],
    "days of the week": DAYS,
    "months": MONTHS,
    "continents": CONTINENTS,
    "oceans": ["the Pacific Ocean", "the Atlantic Ocean", "the Indian Ocean", "the Arctic Ocean",
               "the Southern Ocean"],
    "drinks": ["water", "tea", "coffee", "milk", "orange juice", "lemonade"],
    "flowers": ["rose", "tulip", "daisy", "lily", "sunflower", "violet"],
    "trees": ["oak", "pine", "maple", "birch", "willow", "palm"],
    "tools": ["hammer", "saw", "screwdriver", "drill", "wrench"],
}

OPPOSITES = dict(
    pair.split("/") for pair in """hot/cold big/small tall/short fast/slow happy/sad up/down day/night
light/dark old/new good/bad open/closed rich/poor early/late hard/soft wet/dry left/right true/false
strong/weak loud/quiet full/empty near/far""".split()
)

SYMBOLS = dict(
    pair.split("/") for pair in """hydrogen/H helium/He carbon/C nitrogen/N oxygen/O sodium/Na iron/Fe
gold/Au silver/Ag copper/Cu lead/Pb calcium/Ca potassium/K chlorine/Cl tin/Sn zinc/Zn neon/Ne sulfur/S""".split()
)

ANIMAL_SOUNDS = dict(pair.split("/") for pair in "cat/meow dog/woof cow/moo sheep/baa duck/quack lion/roar".split())

HELLO_IN: dict[str, str] = {"French": "Bonjour", "Spanish": "Hola", "German": "Hallo", "Italian": "Ciao",
                            "Portuguese": "Olá", "Japanese": "こんにちは", "Chinese": "你好", "Russian": "Привет",
                            "Korean": "안녕하세요", "English": "Hello"}
THANKS_IN: dict[str, str] = {"French": "Merci", "Spanish": "Gracias", "German": "Danke", "Italian": "Grazie",
                             "Portuguese": "Obrigado", "Japanese": "ありがとう", "Chinese": "谢谢",
                             "Russian": "Спасибо"}

NAMES = """Alice Bob Carol David Emma Frank Grace Henry Ivy Jack Kate Leo Mia Noah Olivia Paul Quinn Rosa Sam
Tina Uma Victor Wendy Xavier Yara Zoe Anna Ben Clara Daniel Eva Felix Hannah Ian Julia Karl Laura Max Nina
Oscar Peter Rachel Simon Tom Maria Ali Chen Yuki Omar Lina John Mary James Sarah Alex Ana Lucas Sofia Jane
Michael Emily Robert Linda George Ravi Priya Ahmed Fatima Kenji Ming Ivan Olga Pierre Marie Hans Greta""".split()

US_CITIES: dict[str, str] = {"Boston": "MA", "San Francisco": "CA", "New York": "NY", "Chicago": "IL",
                             "Seattle": "WA", "Dallas": "TX", "Miami": "FL", "Denver": "CO", "Los Angeles": "CA",
                             "Austin": "TX", "Portland": "OR", "Atlanta": "GA", "Phoenix": "AZ"}

CITIES = ["Paris", "London", "Tokyo", "Berlin", "Rome", "Madrid", "Beijing", "Shanghai", "Sydney", "Cairo",
          "Moscow", "Toronto", "Lisbon", "Vienna", "Oslo", "Seoul", "Mumbai", "Munich", "Milan", "Dublin",
          "Amsterdam", "Athens", "Zurich", "Singapore", "Bangkok", *US_CITIES]

# question|answer; every question is shown in several wordings by the generator.
SHORT_FACTS: list[tuple[str, str]] = [
    (q, a) for q, a in (line.split("|") for line in """
How many days are in a week?|There are 7 days in a week.
How many months are in a year?|There are 12 months in a year.
How many days are in a year?|There are 365 days in a year, and 366 in a leap year.
How many hours are in a day?|There are 24 hours in a day.
How many minutes are in an hour?|There are 60 minutes in an hour.
How many seconds are in a minute?|There are 60 seconds in a minute.
How many continents are there?|There are 7 continents.
How many planets are in the solar system?|There are 8 planets in the solar system.
What is the largest planet?|The largest planet in the solar system is Jupiter.
What is the smallest planet?|The smallest planet in the solar system is Mercury.
What is the red planet?|Mars is called the red planet.
What is the closest planet to the Sun?|Mercury is the closest planet to the Sun.
What is the largest ocean?|The largest ocean is the Pacific Ocean.
What is the largest continent?|The largest continent is Asia.
What is the largest country in the world?|Russia is the largest country in the world by area.
What is the highest mountain in the world?|Mount Everest is the highest mountain in the world.
What is the longest river in the world?|The Nile is often named as the longest river in the world.
What is the largest animal?|The blue whale is the largest animal.
What is the fastest land animal?|The cheetah is the fastest land animal.
What is the tallest animal?|The giraffe is the tallest animal.
What color is the sky?|The sky is blue on a clear day.
Why is the sky blue?|The sky is blue because air scatters blue light more than red light.
What color is grass?|Grass is green.
What color is snow?|Snow is white.
What color is a banana?|A ripe banana is yellow.
What color is blood?|Blood is red.
What color do you get when you mix blue and yellow?|Blue and yellow make green.
What color do you get when you mix red and blue?|Red and blue make purple.
What is the boiling point of water?|Water boils at 100 degrees Celsius at sea level.
What is the freezing point of water?|Water freezes at 0 degrees Celsius.
What is the chemical formula of water?|The chemical formula of water is H2O.
What do bees make?|Bees make honey.
What do cows drink?|Cows drink water.
What is the Earth's moon called?|The Earth's moon is simply called the Moon.
Who wrote Romeo and Juliet?|William Shakespeare wrote Romeo and Juliet.
Who painted the Mona Lisa?|Leonardo da Vinci painted the Mona Lisa.
Who was the first person on the Moon?|Neil Armstrong was the first person on the Moon.
Who discovered gravity?|Isaac Newton described gravity in the year 1687.
Who developed the theory of relativity?|Albert Einstein developed the theory of relativity.
How many legs does a spider have?|A spider has 8 legs.
How many legs does a dog have?|A dog has 4 legs.
How many legs does an insect have?|An insect has 6 legs.
What is the speed of light?|The speed of light is about 300,000 kilometers per second.
What is the currency of Japan?|The currency of Japan is the yen.
What is the currency of the United States?|The currency of the United States is the US dollar.
What is the currency of the United Kingdom?|The currency of the United Kingdom is the pound.
What is the currency of France?|The currency of France is the euro.
What is the currency of Germany?|The currency of Germany is the euro.
What is the first letter of the alphabet?|The first letter of the alphabet is A.
How many letters are in the English alphabet?|There are 26 letters in the English alphabet.
What is the IP address of the Google DNS servers?|The IP address of the Google DNS servers is 8.8.8.8.
What is the range of the numeric output of a sigmoid node in a neural network?|The output of a sigmoid node is \
between 0 and 1.
What is the meaning of life?|Many people find meaning in friends, family, work and play. A famous book says 42.
What is the square root of 16?|The square root of 16 is 4.
What is pi?|Pi is about 3.14159. It is the ratio of a circle's circumference to its diameter.
""".strip().splitlines())
]
