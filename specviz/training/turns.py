"""User turns as people write them: whole requests, composed of a frame and what goes into it.

What a small model writes in the user's place is not what people ask. A share of the corpus therefore answers
composed requests; the answers are the target's own, as everywhere in the corpus.
"""

from __future__ import annotations

import numpy as np

PARTS: dict[str, tuple[str, ...]] = {
    "thing": (
        "a lighthouse keeper", "an old bicycle", "the sea", "a lost umbrella", "a village baker", "the first snow",
        "a clever crow", "an empty train station", "a garden in autumn", "two sisters", "a broken radio",
        "a map without names", "the night shift", "a stubborn donkey", "an island ferry", "a street musician",
        "a library cat", "the last bus home", "a beekeeper", "a forgotten recipe", "a robot that learns to paint",
        "a mountain hut", "a river in flood", "a young astronomer", "a red kite", "the neighbour's piano",
        "a market in the morning", "a shy dragon", "a retired sailor", "the longest day of the year",
    ),
    "concept": (
        "photosynthesis", "gravity", "inflation", "a rainbow", "the water cycle", "electric current",
        "machine learning", "evolution", "the greenhouse effect", "a black hole", "compound interest",
        "how vaccines work", "recursion", "the moon's phases", "supply and demand", "DNA",
        "the difference between weather and climate", "how bread rises", "the internet", "a lever", "magnetism",
        "why leaves change colour", "the stock market", "democracy", "probability", "how an engine works",
        "the immune system", "plate tectonics", "encryption", "how batteries store energy", "a hash table", "tides",
        "the speed of sound", "sleep", "how a bill becomes a law", "renewable energy",
    ),
    "activity": (
        "learning a new language", "growing tomatoes", "training for a ten kilometre run", "moving to a new flat",
        "preparing for a job interview", "saving money as a student", "baking a cake",
        "planning a weekend in the mountains", "starting a small shop", "writing a first novel", "keeping a diary",
        "taking better photos", "cleaning a kitchen", "packing for a camping trip", "organising a birthday party",
        "reading more books", "studying for an exam", "adopting a dog", "cooking for ten guests",
        "repairing a flat tyre", "working from home", "giving a speech", "painting a room", "sleeping better",
        "buying a used car", "setting up a home network", "visiting a museum with children",
    ),
    "who": (
        "Isaac Newton", "Marie Curie", "Leonardo da Vinci", "Nelson Mandela", "Jane Austen", "Albert Einstein",
        "Cleopatra", "Alan Turing", "Frida Kahlo", "Charles Darwin", "Mozart", "Galileo", "Florence Nightingale",
        "Aristotle", "Grace Hopper",
    ),
    "place": (
        "Japan", "Paris", "the Sahara", "Iceland", "Brazil", "New York", "the Alps", "India", "Rome", "Australia",
        "Kenya", "the Amazon", "Canada", "London", "Egypt", "Norway", "the Great Barrier Reef", "Mexico",
    ),
    "task": (
        "reverses a string", "checks whether a number is prime", "counts the words in a text file",
        "finds the largest number in a list", "removes duplicates from a list", "sorts a list of names by length",
        "computes the factorial of n", "checks whether a word is a palindrome", "merges two sorted lists",
        "converts Fahrenheit to Celsius", "returns the n-th Fibonacci number", "counts the vowels in a string",
        "computes the average of a list of numbers", "finds the second largest value",
        "reads a CSV file and sums a column", "implements binary search", "flattens a nested list",
        "checks if two words are anagrams", "draws a triangle of stars", "validates an email address",
        "groups words by their first letter", "finds all even numbers in a list",
        "computes the greatest common divisor", "turns a dictionary into a sorted list",
        "implements a stack with push and pop", "counts how often each character occurs",
    ),
    "language": (
        "Python", "Python", "Python", "JavaScript", "Java", "C", "SQL", "Ruby", "Go",
    ),
    "tongue": (
        "French", "Spanish", "German", "Italian",
    ),
    "sentence": (
        "The shop is closed on Sundays.", "I would like a cup of coffee, please.", "Where is the nearest hospital?",
        "My brother lives in a small town by the lake.", "The meeting was moved to Thursday afternoon.",
        "It has been raining since this morning.", "She forgot her keys and had to wait outside.",
        "We are looking for a quiet room with two beds.", "The children were playing in the garden all day.",
        "Could you send me the report before noon?", "He has never seen the ocean.",
        "The soup needs a little more salt.",
    ),
    "faulty": (
        "She dont like to swiming in the cold watter.", "Their going too the store becuase they need milk.",
        "Me and him was late for the meating yesterday.", "The childs was playing with there toys in the gardin.",
        "I has went to the libary too times this weak.", "He dont knows were his shoes is.",
        "We was very exited when the trane arrived.", "Its a beutiful day and the birds is singing.",
    ),
    "number": (
        "three", "four", "five", "six", "seven", "eight", "ten",
    ),
    "small": (
        "2", "3", "4", "5", "6", "7", "8", "9", "12", "15",
    ),
    "large": (
        "18", "24", "30", "36", "45", "48", "60", "75", "96", "120", "150",
    ),
    "goods": (
        "apples", "pencils", "tickets", "eggs", "books", "cookies", "marbles", "cups", "roses", "bottles of juice",
    ),
    "name": (
        "Anna", "Tom", "Maria", "Ben", "Sofia", "Liam", "Nora", "Sam", "a farmer", "a teacher",
    ),
    "food": (
        "vegetable soup", "apple pie", "fried rice", "tomato sauce", "banana bread", "scrambled eggs",
        "a fruit salad", "lentil curry", "chocolate cookies", "mashed potatoes",
    ),
    "event": (
        "a school play", "a job opening for a cook", "a late delivery", "a cancelled meeting", "a lost suitcase",
        "a new opening hour", "a noisy neighbour", "a birthday invitation", "a refund for a broken lamp",
        "a day off next Friday",
    ),
}

FRAMES: tuple[str, ...] = (
    "Tell a short story about {thing}.", "Write a short story about {thing} and {thing}.",
    "Write a poem about {thing}.", "Write a haiku about {thing}.", "Describe {thing} in one paragraph.",
    "Tell me a bedtime story about {thing}.", "Explain {concept} to a child.", "What is {concept}?",
    "Explain {concept} in simple words.", "Why is {concept} important?", "Give me a short summary of {concept}.",
    "How would you explain {concept} to a friend? Use an example.", "List {number} tips for {activity}.",
    "Give me {number} ideas for {activity}.", "What should I know about {activity}?",
    "Make a checklist for {activity}.", "What are the steps of {activity}?",
    "List {number} mistakes people make when {activity}.", "List {number} facts about {place}.",
    "What is {place} known for?", "Plan {number} days in {place}.", "Who was {who}?", "What did {who} do?",
    "Write a short biography of {who}.", "Write a {language} function that {task}.",
    "Write a {language} program that {task}. Add comments.", "How do I write {language} code that {task}?",
    "Write a Python function that {task}, with a short docstring.", "Translate into {tongue}: {sentence}",
    "How do you say this in {tongue}? {sentence}", "Correct the spelling and grammar: {faulty}",
    "Rewrite this more politely: {sentence}", "Fix the mistakes: {faulty} {faulty}",
    "Summarize in one sentence: {sentence} {sentence} {sentence}",
    "{name} has {large} {goods} and gives away {small}. How many are left? Work it out step by step.",
    "{name} buys {small} {goods} at {small} dollars each and pays with {large} dollars. How much change is there?",
    "A train travels {large} kilometres in {small} hours. How fast is it?", "What is {large} times {small}?",
    "Give me a recipe for {food}.", "What do I need to make {food}?", "Write a short email about {event}.",
    "Write a polite letter about {event}.", "Write a dialogue between {name} and {name} about {activity}.",
    "What are the advantages and disadvantages of {activity}?", "Compare {place} and {place}.",
    "Write {number} questions for a quiz about {concept}.",
)


def compose(random: np.random.Generator) -> str:
    """One request, drawn by a random frame and random parts."""
    text = str(random.choice(FRAMES))
    while "{" in text:
        name = text[text.index("{") + 1: text.index("}")]
        text = text.replace("{" + name + "}", str(random.choice(PARTS[name])), 1)
    return text[0].upper() + text[1:]
