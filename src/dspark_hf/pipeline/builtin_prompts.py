"""Prompts of our own making, for a run without any data set: short tasks in mathematics, code and conversation.

A task appears in several wordings, or with several numbers, that share the part of their id before `#`: a split by id keeps
all of them on one side. It knows nothing of models or files.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence

from dspark_hf.training.data import Conversation


CODE_FORMS = (
    "Write a Python function that {}.",
    "I need Python code that {}. Explain it in one paragraph.",
    "Show me a short Python program that {}, with a test.",
    "How would you write a function that {}? Answer in Python and name its time complexity.",
    "Write a Python class with a method that {}.",
    "Explain step by step how a Python script {}, then show the script.",
)
CODE_TASKS = (
    "reverses a string|counts the vowels of a sentence|returns the n-th Fibonacci number|checks whether a number is prime|"
    "finds the largest item of a list|removes duplicates from a list and keeps the order|merges two sorted lists|"
    "checks whether two words are anagrams|computes the factorial of a number|sorts a list of tuples by the second item|"
    "flattens a nested list|counts the words of a text file|converts Celsius to Fahrenheit|finds the longest word of a text|"
    "computes the greatest common divisor of two numbers|checks whether a word is a palindrome|"
    "reads a CSV file into a list of dictionaries|writes a dictionary to a JSON file|groups a list of words by first letter|"
    "finds all pairs of a list that add up to a target|rotates a list by k places|transposes a matrix|"
    "implements binary search|implements bubble sort|implements a stack with a class|implements a queue with two stacks|"
    "counts how often each character occurs|validates an email address|generates a random password|"
    "computes the mean and median of a list|converts a number to binary|converts a Roman numeral to an integer|"
    "finds the missing number of 1 to n|checks whether brackets are balanced|computes the power set of a set|"
    "prints a multiplication table|draws a triangle of stars|splits a list into chunks of n|"
    "caches the results of a function|measures how long a function takes|walks a folder and lists its files|"
    "downloads a web page and counts its links|parses a date such as 2024-03-01|computes the day of the week of a date|"
    "simulates a coin toss a thousand times|draws a histogram with text|encrypts a text with the Caesar cipher|"
    "finds the shortest path in a grid|traverses a binary tree in order|computes the depth of a binary tree|"
    "reverses a linked list|detects a cycle in a linked list|finds the k-th smallest item|sums the digits of a number|"
    "computes compound interest|formats a number with thousands separators|swaps the keys and values of a dictionary|"
    "merges two dictionaries and adds their values|finds the common items of three lists|capitalises each word of a title|"
    "removes the punctuation of a text|computes the Hamming distance of two strings|computes the edit distance of two words|"
    "solves the Towers of Hanoi|evaluates a polynomial|multiplies two matrices|finds the mode of a list|"
    "counts the lines of code in a project|renames all files of a folder to lower case|reads the last lines of a log file"
).split("|")

TOPIC_FORMS = (
    "Explain {} to a beginner.",
    "What is {} and why does it matter?",
    "Give me five facts about {}.",
    "Write a short paragraph about {}.",
    "What are common mistakes people make about {}?",
    "Summarise {} in three sentences.",
)
TOPICS = (
    "photosynthesis|gravity|the water cycle|black holes|vaccines|inflation|compound interest|supply and demand|democracy|"
    "the French Revolution|the Roman Empire|the Silk Road|plate tectonics|volcanoes|earthquakes|the greenhouse effect|"
    "renewable energy|nuclear power|electric cars|batteries|machine learning|neural networks|recursion|databases|"
    "version control|unit testing|the internet|encryption|blockchain|open source software|cloud computing|operating systems|"
    "DNA|evolution|the immune system|the human heart|sleep|nutrition|exercise|meditation|stress|memory|habits|"
    "time management|public speaking|teamwork|leadership|negotiation|personal budgets|taxes|insurance|investing|"
    "jazz|classical music|impressionist painting|photography|architecture|poetry|the novel|theatre|film editing|"
    "chess|football|swimming|cycling|hiking|gardening|baking bread|coffee|tea|cheese|spices|"
    "the Pacific Ocean|the Amazon rainforest|the Sahara|Antarctica|the Himalayas|coral reefs|bees|whales|wolves|owls|"
    "dinosaurs|the moon|Mars|comets|telescopes|satellites|airplanes|bridges|trains|clocks|paper|glass|steel|plastic|"
    "language learning|translation|handwriting|libraries|museums|maps|calendars|money|markets|cities|"
    "probability|statistics|prime numbers|triangles|calculus|algebra|logic|infinity|cryptography|game theory"
).split("|")

WRITING_FORMS = (
    "Write a polite email to {}.",
    "Write a short story about {}.",
    "Give {} some advice for the first week.",
    "Make a list of questions to ask {}.",
)
PEOPLE = (
    "a new colleague|a landlord about a broken heater|a teacher|a customer whose parcel is late|a neighbour with a loud dog|"
    "a friend who moves to another city|a manager about a day off|a student before an exam|a doctor|a librarian|"
    "a chef who opens a restaurant|a painter|a gardener in a dry summer|a sailor|a young programmer|a retired engineer|"
    "a musician before a concert|a coach of a losing team|a tourist in a foreign city|a parent of twins|a shop owner|"
    "a bus driver|a farmer|a nurse on the night shift|a scientist with a surprising result|a detective|a pilot|"
    "a lighthouse keeper|a baker|a beekeeper|a carpenter|a journalist|a judge|a postman|a firefighter|a dentist"
).split("|")

MATH_TASKS = (
    "A shop sells pens for {a} cents each. How much do {b} pens cost, and what change is left from {c} dollars?",
    "A train travels {a} km in {b} hours. What is its average speed, and how far does it get in {c} hours?",
    "Anna has {a} apples, gives {b} to her brother and buys {c} more. How many has she now?",
    "A rectangle is {a} cm long and {b} cm wide. What are its area and perimeter?",
    "What is {a} percent of {c}0?",
    "A recipe for {b} people needs {a} grams of flour. How much is needed for {c} people?",
    "Solve the equation {b}x + {a} = {c}{a}.",
    "Tom reads {a} pages a day. How many days does he need for a book of {c}{b} pages?",
    "The sum of two numbers is {c}{a} and their difference is {b}. Find both numbers.",
    "A tank holds {c}{a} litres and loses {b} litres an hour. When is it empty?",
    "A shirt costs {a} dollars and is reduced by {b} percent. What is the new price?",
    "If {b} workers paint a wall in {a} hours, how long do {c} workers need?",
    "A class has {a} pupils; {b} of them play chess. What fraction does not?",
    "Compute the mean of {a}, {b}, {c} and {a}{b}.",
    "A car uses {b} litres for 100 km. How much does it use for {c}{a} km?",
    "Maria saves {a} dollars a week. How much has she after {b} months, counting 4 weeks a month?",
    "How many seconds are there in {a} hours and {b} minutes?",
    "A ladder is {a} feet long and stands {b} feet from the wall. How high does it reach?",
    "The angles of a triangle are {a} and {b} degrees. What is the third?",
    "A farmer has {a} cows and {c} chickens. How many legs are that?",
    "Two dice are thrown. What is the probability that the sum is {b}?",
    "Write {a} as a product of primes.",
    "A phone costs {c}{a} dollars and is paid in {b} equal rates. How large is one rate?",
    "A garden is {a} m by {c} m. A path of {b} m runs around it. What is the area of the path?",
)
NUMBERS_A_TASK = 36
DOMAINS = ("code", "math", "chat")


def builtin_conversations(
    limit: int | None = None, *, domains: Sequence[str] | None = None, system_prompt: str | None = None
) -> list[Conversation]:
    """
    About 2,000 single-turn prompts in a fixed order that mixes the three kinds.

    Args:
        limit (`int`, *optional*): at most this many; a larger limit only adds.
        domains (`Sequence[str]`, *optional*): some of `"code"`, `"math"` and `"chat"`; all by default.
        system_prompt (`str`, *optional*): put before each.

    Raises:
        ValueError: no domain, or an unknown one.
    """
    domains = DOMAINS if domains is None else domains
    if not domains or not set(domains) <= set(DOMAINS):
        raise ValueError(f"the built-in prompts' domains are {', '.join(DOMAINS)}; got {list(domains)}")
    system = ({"role": "system", "content": system_prompt},) if system_prompt else ()
    found = [
        Conversation(id=name, messages=(*system, {"role": "user", "content": text}), source=name.split("/")[0])
        for name, text in _prompts()
        if name.split("/")[0] in domains
    ]
    return sorted(found, key=lambda item: hashlib.sha256(item.id.encode()).digest())[:limit]


def _prompts() -> Iterator[tuple[str, str]]:
    for domain, subjects, forms in (
        ("code", CODE_TASKS, CODE_FORMS),
        ("chat", TOPICS, TOPIC_FORMS),
        ("chat", PEOPLE, WRITING_FORMS),
    ):
        for subject in subjects:
            for number, form in enumerate(forms):
                yield f"{domain}/{subject}#{number}", form.format(subject)
    numbers = random.Random(0)
    for index, task in enumerate(MATH_TASKS):
        texts = [
            task.format(a=numbers.randint(11, 60), b=numbers.randint(3, 9), c=numbers.randint(5, 20))
            for _ in range(NUMBERS_A_TASK)
        ]
        for number, text in enumerate(dict.fromkeys(texts)):
            yield f"math/{index}#{number}", text
