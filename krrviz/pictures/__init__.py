"""Pictures: what each page draws, from computed results to figures and maps by name."""
