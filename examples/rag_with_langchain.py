"""Retrieval-augmented generation: retrieve page images, and answer with a language model that reads them.

python examples/rag_with_langchain.py [FOLDER]

The answer model is a stand-in that quotes the line of the page that shares most words with the question. Put any chat
model of LangChain: a vision model can be given the page image (`document.metadata["image"]`).
"""

import re
import sys
import tempfile
from pathlib import Path

from langchain_core.documents import Document
from langchain_core.prompt_values import PromptValue
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from anchorfold import AnchorFold, Index
from anchorfold.demo.sample_documents import slides
from anchorfold.integrations.langchain import LangChainRetriever

PROMPT = ChatPromptTemplate.from_template("Answer from these pages and cite them.\n\n{pages}\n\nQuestion: {question}")


def as_context(documents: list[Document]) -> str:
    return "\n\n".join(
        f"[{Path(d.metadata['document']).name}, page {d.metadata['page']}]\n{d.page_content.strip()}" for d in documents
    )


def quote(prompt: PromptValue) -> str:
    """A stand-in for a language model."""
    pages, question = prompt.to_string().split("Question: ")
    words = set(re.findall(r"\w+", question.lower()))
    citation, best = "", ("", "", 0)
    for line in pages.splitlines():
        if line.startswith("["):
            citation = line
        elif (score := len(words & set(re.findall(r"\w+", line.lower())))) > best[2]:
            best = (line.strip(), citation, score)
    return f"{best[0]} {best[1]}"


def main() -> None:
    with tempfile.TemporaryDirectory() as work:
        documents = Path(work) / "wifi-slides.pdf" if len(sys.argv) < 2 else Path(sys.argv[1])
        if len(sys.argv) < 2:
            slides().output(str(documents))
        index = Index.create(Path(work) / "my.index", compressor=AnchorFold(ratio=0.1))
        index.add(documents)
        retriever = LangChainRetriever(index=index, top_k=2, pixels=None)
        chain = {"pages": retriever | as_context, "question": RunnablePassthrough()} | PROMPT | RunnableLambda(quote)
        for question in ("who is the sponsor?", "what is the budget?"):
            print(f"{question} {chain.invoke(question)}")


if __name__ == "__main__":
    main()
