"""Complete distributions for new plugins, made from the templates in ``templates/``."""
