# Sourced by the jobs of test_slurm.py before their cell: $FAULTS holds what shall befall each task in its first submission.
task=$SLURM_ARRAY_TASK_ID
if [ ! -e "$FAULTS/over" ] && [ -z "${SLURM_RESTART_COUNT:-}" ]; then
  case "$(cat "$FAULTS/fault_$task" 2> /dev/null)" in
    disk) ulimit -f 1 ;;       # no file above 1 KiB: what a full disk does
    memory) ulimit -d 300000 ;; # enough to import torch, too little for the model
    slow) # from its first sample on the cell runs a twentieth of the time, until it is released
      samples=$(cat "$FAULTS/samples_$task") cell=$$
      (
        until [ -s "$samples" ]; do sleep 0.1; done
        while [ ! -e "$FAULTS/release_$task" ] && kill -STOP "$cell"; do
          sleep 0.57
          kill -CONT "$cell"
          sleep 0.03
        done
        kill -CONT "$cell"
      ) > /dev/null 2>&1 &
      ;;
  esac
fi
