"""Ablations: which of the parts matter, in trained models and in the one built by hand?"""

from krrviz.ui import ablations, share, shell

settings = shell.settings()

share.head(
    "What if the kernel or the attention is another?",
    "The paper, as far as digests of it tell, finds a weaker match where the kernel is another "
    "or linear attention stands in softmax's place. Here is what comes out.",
)
ablations.show(settings)
