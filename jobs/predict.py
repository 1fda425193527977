"""Label names for new texts, from a trained run or an exported model."""

import argparse

from elias_ray.cli import reporting_errors
from elias_ray.plan import open_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, metavar="DIR", help="folder of a run or of an exported model")
    parser.add_argument(
        "--input",
        required=True,
        metavar="FILE|-",
        help="a text a line, .jsonl, .parquet; also .gz; - reads lines",
    )
    parser.add_argument("--output", metavar="FILE", help=".jsonl or .parquet (default: JSON lines on the screen)")
    parser.add_argument("--top-k", type=int, default=5, metavar="K", help="labels of each text (default: %(default)s)")
    parser.add_argument("--text-column", default="text", metavar="NAME", help="of .jsonl and .parquet (default: text)")
    parser.add_argument("--explain", action="store_true", help="also the clusters and paths that led to each label")
    parser.add_argument(
        "overrides", nargs="*", metavar="section.key=value", help="inference.* and resources.* of the run's config"
    )
    arguments = parser.parse_intermixed_args()
    with reporting_errors():
        config = open_run(arguments.run, arguments.overrides)[0].config
        from elias_ray import predict_texts  # torch and more, which --help and a typing error need not wait for

        question = predict_texts.Question.of(arguments.run, arguments.overrides, arguments.top_k, arguments.explain)
        if arguments.input == "-":
            predict_texts.predict_stdin(question, arguments.output)
        else:
            predict_texts.predict_file(question, config, arguments.input, arguments.text_column, arguments.output)


if __name__ == "__main__":
    main()
