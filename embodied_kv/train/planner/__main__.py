from embodied_kv.train.planner.trainer import main

if __name__ == '__main__':
    main()
