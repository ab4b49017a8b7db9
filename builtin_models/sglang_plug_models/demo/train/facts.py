"""Everyday fact tables that the demo corpus is generated from."""

from __future__ import annotations

PLANETS = ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
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
    "oceans": [
        "the Pacific Ocean",
        "the Atlantic Ocean",
        "the Indian Ocean",
        "the Arctic Ocean",
        "the Southern Ocean",
    ],
    "drinks": ["water", "tea", "coffee", "milk", "orange juice", "lemonade"],
    "flowers": ["rose", "tulip", "daisy", "lily", "sunflower", "violet"],
    "trees": ["oak", "pine", "maple", "birch", "willow", "palm"],
    "tools": ["hammer", "saw", "screwdriver", "drill", "wrench"],
}

OPPOSITES = dict(
    pair.split("/")
    for pair in """hot/cold big/small tall/short fast/slow happy/sad up/down day/night
light/dark old/new good/bad open/closed rich/poor early/late hard/soft wet/dry left/right true/false
strong/weak loud/quiet full/empty near/far""".split()
)

SYMBOLS = dict(
    pair.split("/")
    for pair in """hydrogen/H helium/He carbon/C nitrogen/N oxygen/O sodium/Na iron/Fe
gold/Au silver/Ag copper/Cu lead/Pb calcium/Ca potassium/K chlorine/Cl tin/Sn
zinc/Zn neon/Ne sulfur/S""".split()
)

ANIMAL_SOUNDS = dict(pair.split("/") for pair in "cat/meow dog/woof cow/moo sheep/baa duck/quack lion/roar".split())

HELLO_IN: dict[str, str] = {
    "French": "Bonjour",
    "Spanish": "Hola",
    "German": "Hallo",
    "Italian": "Ciao",
    "Portuguese": "Olá",
    "Japanese": "こんにちは",
    "Chinese": "你好",
    "Russian": "Привет",
    "Korean": "안녕하세요",
    "English": "Hello",
}
THANKS_IN: dict[str, str] = {
    "French": "Merci",
    "Spanish": "Gracias",
    "German": "Danke",
    "Italian": "Grazie",
    "Portuguese": "Obrigado",
    "Japanese": "ありがとう",
    "Chinese": "谢谢",
    "Russian": "Спасибо",
}

NAMES = """Alice Bob Carol David Emma Frank Grace Henry Ivy Jack Kate Leo Mia Noah Olivia Paul Quinn Rosa Sam
Tina Uma Victor Wendy Xavier Yara Zoe Anna Ben Clara Daniel Eva Felix Hannah Ian Julia Karl Laura Max Nina
Oscar Peter Rachel Simon Tom Maria Ali Chen Yuki Omar Lina John Mary James Sarah Alex Ana Lucas Sofia Jane
Michael Emily Robert Linda George Ravi Priya Ahmed Fatima Kenji Ming Ivan Olga Pierre
Marie Hans Greta""".split()

US_CITIES: dict[str, str] = {
    "Boston": "MA",
    "San Francisco": "CA",
    "New York": "NY",
    "Chicago": "IL",
    "Seattle": "WA",
    "Dallas": "TX",
    "Miami": "FL",
    "Denver": "CO",
    "Los Angeles": "CA",
    "Austin": "TX",
    "Portland": "OR",
    "Atlanta": "GA",
    "Phoenix": "AZ",
}

CITIES = [
    "Paris",
    "London",
    "Tokyo",
    "Berlin",
    "Rome",
    "Madrid",
    "Beijing",
    "Shanghai",
    "Sydney",
    "Cairo",
    "Moscow",
    "Toronto",
    "Lisbon",
    "Vienna",
    "Oslo",
    "Seoul",
    "Mumbai",
    "Munich",
    "Milan",
    "Dublin",
    "Amsterdam",
    "Athens",
    "Zurich",
    "Singapore",
    "Bangkok",
    *US_CITIES,
]

# question|answer, a line that goes on is indented; every question is shown in several wordings.
_SHORT_FACTS = """
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
What is the IP address of the Google DNS servers?|The IP address of the Google DNS servers is
  8.8.8.8.
What is the range of the numeric output of a sigmoid node in a neural network?|The output of a
  sigmoid node is between 0 and 1.
What is the meaning of life?|Many people find meaning in friends, family, work and play. A famous
  book says 42.
What is the square root of 16?|The square root of 16 is 4.
What is pi?|Pi is about 3.14159. It is the ratio of a circle's circumference to its diameter.
"""


def _pairs(table: str) -> list[tuple[str, str]]:
    rows = table.strip().replace("\n  ", " ").splitlines()
    return [(question, answer) for question, answer in (row.split("|") for row in rows)]


SHORT_FACTS: list[tuple[str, str]] = _pairs(_SHORT_FACTS)
