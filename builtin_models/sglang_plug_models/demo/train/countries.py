"""The countries of the demo corpus, their capitals and what is said about them."""

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
        """Return the name as it reads inside a sentence, with its article if it has one."""
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
    countries: list[Country] = []
    continent = ""
    for line in _TABLE.strip().splitlines():
        if line.startswith("#"):
            continent = line[1:]
            continue
        name, capital, language = line.split("|")
        countries.append(Country(name, capital, continent, language))
    return countries


COUNTRIES: list[Country] = _countries()

FAMOUS: list[str] = (
    "France|Germany|Italy|Spain|United Kingdom|Japan|China|India|United States|Canada|Brazil|Australia|Mexico"
    "|Russia|Egypt|South Korea|Greece|Portugal|Netherlands|Sweden|Norway|Argentina|Turkey|Thailand|Kenya"
    "|South Africa|Poland|Austria|Ireland|Switzerland|Denmark|Finland|Belgium|Vietnam|Indonesia|New "
    "Zealand|Peru"
    "|Chile|Colombia|Cuba|Hungary|Czech Republic|Iceland|Nigeria|Morocco"
).split("|")

ALIASES: dict[str, str] = {
    "UK": "United Kingdom",
    "USA": "United States",
    "US": "United States",
    "Czechia": "Czech Republic",
    "UAE": "United Arab Emirates",
}

# Rounded figures, as the model is meant to learn a shape, not a census.
CAPITAL_POPULATION: dict[str, int] = {
    "Paris": 2100000,
    "Berlin": 3700000,
    "Rome": 2800000,
    "Madrid": 3300000,
    "London": 8900000,
    "Tokyo": 14000000,
    "Beijing": 21900000,
    "New Delhi": 250000,
    "Washington, D.C.": 690000,
    "Ottawa": 1000000,
    "Brasília": 2800000,
    "Canberra": 460000,
    "Mexico City": 9200000,
    "Moscow": 13000000,
    "Cairo": 10000000,
    "Seoul": 9400000,
    "Athens": 640000,
    "Lisbon": 550000,
    "Amsterdam": 920000,
    "Stockholm": 980000,
    "Oslo": 710000,
    "Buenos Aires": 3100000,
    "Ankara": 5700000,
    "Bangkok": 8300000,
    "Nairobi": 4400000,
    "Warsaw": 1800000,
    "Vienna": 2000000,
    "Dublin": 590000,
    "Bern": 130000,
    "Copenhagen": 650000,
    "Helsinki": 660000,
    "Hanoi": 8000000,
    "Lima": 10000000,
    "Havana": 2100000,
    "Prague": 1300000,
    "Budapest": 1700000,
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
