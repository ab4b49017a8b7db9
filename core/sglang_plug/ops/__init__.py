"""Operations that kernel sets may replace, defined in torch."""
