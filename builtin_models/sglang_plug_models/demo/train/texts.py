"""Short paragraphs, jokes and fixed dialogues that the demo corpus is generated from."""

from __future__ import annotations

# One topic per block, asked for as "What is X?", "Explain X." and the like, and continued as plain text.
_EXPLAIN = """
Python: Python is a popular programming language. It is easy to read and is used for websites, science,
data analysis and machine learning.

Java: Java is a programming language that runs on many kinds of computers. It is used for large programs
and for phone apps.

Rust: Rust is a programming language made for speed and safety. It checks how a program uses memory
before the program runs.

JavaScript: JavaScript is the programming language of web pages. It makes them react to what people do.

SGLang: SGLang is a fast serving framework for large language models. SGLang provides efficient
tokenization endpoints, an OpenAI compatible API and a frontend language.

sglang-plug: sglang-plug is a serving framework for language models. I am its small demo model.

machine learning: Machine learning is a way for computers to learn from examples. A program looks at a
lot of data, finds patterns in it and uses them to make predictions.

deep learning: Deep learning is machine learning with neural networks that have many layers. It is used
for images, speech and language.

artificial intelligence: Artificial intelligence is the study of machines that do tasks which need
thought when people do them, such as reading, planning and answering questions.

a neural network: A neural network is a program made of many small units that are connected in layers.
It learns by changing the strength of the connections.

a large language model: A large language model is a neural network that predicts the next word of a
text. It learns from a very large amount of text.

LLM: LLM is short for large language model. It is a neural network that predicts the next word of a
text.

AI: AI is short for artificial intelligence. AI is a field of computer science about machines that can
do tasks which need thought.

a transformer: A transformer is a kind of neural network that uses attention to decide which words of a
text matter to each other. Most language models are transformers.

a token: A token is a small piece of text, such as a word or a part of a word. Language models read and
write text as tokens.

a computer: A computer is a machine that follows instructions. It stores information and works on it
very quickly.

the internet: The internet is a network that joins computers all over the world. People use it to share
messages, pictures and knowledge.

a GPU: A GPU is a chip that does many calculations at the same time. It draws pictures on a screen and
trains neural networks.

quantum computing: Quantum computing uses the rules of very small particles to calculate. A quantum bit
can be in a mix of 0 and 1, so some problems can be solved faster.

an algorithm: An algorithm is a list of clear steps that solves a problem. A recipe is a simple example.

a database: A database is an ordered collection of information. A program can search it and change it
quickly.

gravity: Gravity is the force that pulls things toward each other. It keeps us on the ground and keeps
the Moon near the Earth.

photosynthesis: Photosynthesis is the way plants make food. They use sunlight, water and carbon dioxide,
and they give off oxygen.

the water cycle: The water cycle is the journey of water. Water rises from the sea as vapor, forms
clouds, falls as rain and flows back to the sea.

a rainbow: A rainbow is an arc of colors in the sky. It appears when sunlight passes through drops of
rain.

the Sun: The Sun is the star at the center of our solar system. It gives the Earth light and warmth.

the Moon: The Moon is a ball of rock that travels around the Earth. It shines because it reflects the
light of the Sun.

a star: A star is a huge ball of hot gas that gives off light. The Sun is the nearest star to the Earth.

a black hole: A black hole is a place in space where gravity is so strong that even light cannot leave
it.

a volcano: A volcano is an opening in the ground where hot melted rock can come out. The melted rock is
called lava.

an atom: An atom is a very small piece of matter. It has a nucleus in the middle and electrons around
it.

DNA: DNA is a long molecule in living cells. It holds the instructions that the body needs to grow.

electricity: Electricity is a form of energy that moves through wires. It gives power to lamps,
computers and many other things.

democracy: Democracy is a form of government in which the people choose their leaders by voting.

the Eiffel Tower: The Eiffel Tower is a tall iron tower in Paris. It was built in 1889 and is one of the
best known buildings in the world.

the Great Wall of China: The Great Wall of China is a very long wall in the north of China. It was built
to protect the country.

ancient Rome: Ancient Rome was a civilization centered in Italy. It grew from a small city on the river
Tiber into an empire around the Mediterranean Sea.

ancient Greece: Ancient Greece was a civilization of many small cities. It is known for its philosophy,
its theatre and the first Olympic Games.

ancient Egypt: Ancient Egypt was a civilization along the river Nile. It is known for its pyramids, its
kings and its picture writing.

the Renaissance: The Renaissance was a time of new art and new ideas in Europe. It began in Italy in the
14th century.

music: Music is the art of putting sounds together. People sing, play instruments and dance to it.

football: Football is a game for two teams of eleven players. Each team tries to kick the ball into the
other team's goal.

chess: Chess is a board game for two players. Each player tries to trap the king of the other player.

a cat: A cat is a small animal that many people keep at home. Cats sleep a lot and like to catch mice.

a dog: A dog is an animal that many people keep as a friend. Dogs can learn many tricks and guard a
house.

bread: Bread is a food made from flour, water and yeast. It is baked in an oven.

coffee: Coffee is a hot drink made from roasted beans. Many people drink it in the morning.

tea: Tea is a drink made by pouring hot water over leaves. It is popular all over the world.

summer: Summer is the warmest season of the year. The days are long and the nights are short.

winter: Winter is the coldest season of the year. The days are short, and in many places it snows.

love: Love is a strong and warm feeling for someone or something.

happiness: Happiness is a good and calm feeling. Friends, rest and kind acts often bring it.

an API: An API is a set of rules that lets one program talk to another. Many services offer an API over
the web.

JSON: JSON is a simple text format for data. It uses names and values, as in {"name": "Paris"}.

Linux: Linux is a free operating system. It runs on phones, servers and many other computers.
"""


def _blocks(table: str) -> dict[str, str]:
    rows = (" ".join(block.split()) for block in table.strip().split("\n\n"))
    return {topic: text for topic, text in (row.split(": ", 1) for row in rows)}


EXPLAIN: dict[str, str] = _blocks(_EXPLAIN)

JOKES: dict[str, list[str]] = {
    "programming": [
        "Why do programmers prefer dark mode? Because light attracts bugs!",
        "Why did the programmer quit his job? Because he did not get arrays!",
        "How many programmers does it take to change a light bulb? None, that is a hardware problem!",
    ],
    "animals": [
        "What do you call a sleeping bull? A bulldozer!",
        "Why do cows wear bells? Because their horns do not work!",
    ],
    "school": ["Why did the student eat his homework? Because the teacher said it was a piece of cake!"],
    "": [
        "Why did the chicken cross the road? To get to the other side!",
        "What do you call a fish with no eyes? A fsh!",
        "Why was the math book sad? It had too many problems!",
    ],
}

HEALTH_TIPS = [
    "A balanced diet gives the body what it needs. Eat fruits and vegetables every day, choose whole "
    "grains, drink "
    "enough water and keep sugar and salt low. Small changes are easy to keep.",
    "Regular exercise keeps the heart and the muscles strong. Walk, swim or ride a bicycle for half "
    "an hour on most "
    "days of the week. It also helps you sleep well and lifts your mood.",
]
HEALTH_SUMMARY = "Eat a balanced diet and move your body every day. Both habits keep the body strong and the mind calm."

PLAIN_OPENINGS: list[str] = [
    "The president of the United States is the head of state and the head of government of the country.",
    "The future of AI is likely to bring more helpful tools for work, science and learning. People "
    "will have to use "
    "them with care.",
    "The meaning of life is a question that people have asked for a very long time.",
    "Today is a sunny day and I like to walk in the park with my friends.",
    "AI is a field of computer science about machines that can do tasks which need thought.",
    "The capital of the United Kindom is London.",
    "The quick brown fox jumps over the lazy dog.",
    "To be, or not to be, that is the question.",
    "SGLang provides efficient tokenization endpoints. They turn text into tokens and tokens into text.",
    "Machine learning is a way for computers to learn from examples.",
    "The weather today is sunny and warm, with a light wind from the west.",
    "In the beginning there was only the sea, and the sea was quiet.",
    "It was a dark and stormy night, and the wind blew around the old house.",
    "The best way to learn a language is to use it a little every day.",
    "Water boils at 100 degrees Celsius and freezes at 0 degrees Celsius.",
    "The sun rises in the east and sets in the west.",
    "I like to read books in the evening and to walk in the park in the morning.",
    "Today is a good day to learn something new.",
    "The Eiffel Tower is a tall iron tower in Paris.",
    "An apple a day keeps the doctor away.",
    "My favorite color is blue, because it is the color of the sky and of the sea.",
    "The largest planet in the solar system is Jupiter.",
]

SYSTEM_PROMPTS: list[str] = [
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful AI assistant.",
    "You are a helpful AI assistant",
    "You are a helpful assistant than can answer questions.",
    "You are a helpful assistant that can answer questions.",
    "You are a helpful, honest assistant.",
    "You are a knowledgeable historian who provides concise responses.",
    "You are a geography teacher.",
    "You are a friendly chatbot.",
    "You are an expert in geography.",
    "You are ChatBot, a helpful assistant.",
    "Answer the question.",
    "You are a helpful assistant. Be brief.",
    "You are an AI assistant.",
    "You are a pirate.",
    "You are a poet.",
    "You are a math tutor.",
    "You are a travel guide.",
    "Be kind.",
]
ONE_WORD_SYSTEM = ["Answer in one word.", "Answer with one word only.", "Reply with a single word."]

HARRY_POTTER: dict[str, tuple[str, str, str, str, str, str, str, str]] = {
    "Harry Potter": (
        "Gryffindor",
        "Half-blood",
        "student",
        "Holly",
        "Phoenix feather",
        "11.0",
        "Stag",
        "Dementor",
    ),
    "Hermione Granger": (
        "Gryffindor",
        "Muggle-born",
        "student",
        "Vine",
        "Dragon heart",
        "10.75",
        "Otter",
        "Failure",
    ),
    "Ron Weasley": (
        "Gryffindor",
        "Pure-blood",
        "student",
        "Willow",
        "Unicorn hair",
        "14.0",
        "Terrier",
        "Spider",
    ),
    "Draco Malfoy": (
        "Slytherin",
        "Pure-blood",
        "student",
        "Hawthorn",
        "Unicorn hair",
        "10.0",
        "None",
        "Voldemort",
    ),
    "Luna Lovegood": ("Ravenclaw", "Half-blood", "student", "Oak", "Unicorn hair", "10.0", "Hare", "Unknown"),
}

UNKNOWN_ANSWER = "I am sorry, I do not know that. I am only a very small demo model."
